//! One chart: live and reserved bytes over the events of a trace, as SVG.

use plotters::prelude::*;
use thiserror::Error;

use super::ReplayRow;
use crate::replay::Curve;
use crate::units::mebibytes;

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (900, 320);

/// Fill of the live bytes.
const LIVE: RGBColor = RGBColor(0xC9, 0xD6, 0xE2);

/// Lines of the allocators, in the order of the registry; told apart also by
/// readers who do not see red and green, and used again from the start if there
/// are more allocators.
const LINES: [RGBColor; 8] = [
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x00, 0x00, 0x00),
    RGBColor(0x8C, 0x6D, 0x31),
];

/// A chart that could not be drawn.
#[derive(Debug, Error)]
#[error("the chart cannot be drawn: {0}")]
pub struct ChartError(String);

/// Colour of the `index`-th line, as CSS writes it.
pub(super) fn line_colour(index: usize) -> String {
    css(LINES[index % LINES.len()])
}

/// Colour of the live bytes, as CSS writes it.
pub(super) fn live_colour() -> String {
    css(LIVE)
}

/// An `<svg>` element with the curves of one trace.
pub(super) fn chart(curves: &[(&ReplayRow, &Curve)]) -> Result<String, ChartError> {
    let mut svg = String::new();
    draw(&mut svg, curves).map_err(|error| ChartError(error.to_string()))?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    curves: &[(&ReplayRow, &Curve)],
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || curves.iter().flat_map(|(_, curve)| curve.points());
    let last_event = points().map(|point| point.event).max().unwrap_or(0).max(1);
    let top_bytes = points()
        .map(|point| point.reserved_bytes)
        .max()
        .unwrap_or(0)
        .max(1);
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin(8)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(0..last_event, 0.0..mebibytes(top_bytes) * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(0xE4, 0xE4, 0xE4))
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 15))
        .x_desc("event")
        .y_desc("MiB")
        .y_label_formatter(&|mib| format!("{mib:.0}"))
        .draw()?;
    // Live bytes are the trace's own; the run that got furthest shows most of them.
    let longest = curves.iter().max_by_key(|(_, curve)| curve.points().len());
    if let Some((_, curve)) = longest {
        let live = curve
            .points()
            .iter()
            .map(|point| (point.event, mebibytes(point.live_bytes)));
        chart.draw_series(AreaSeries::new(live, 0.0, LIVE))?;
    }
    for (index, (_, curve)) in curves.iter().enumerate() {
        let line = curve
            .points()
            .iter()
            .map(|point| (point.event, mebibytes(point.reserved_bytes)));
        let style = LINES[index % LINES.len()].stroke_width(2);
        chart.draw_series(LineSeries::new(line, style))?;
    }
    root.present()?;
    drop(chart);
    drop(root);
    Ok(())
}

fn css(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
