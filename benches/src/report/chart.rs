//! One chart: live and reserved bytes over the events of a trace, as SVG.

use std::error::Error;

use plotters::prelude::*;

use super::page::escape;
use crate::numbers::mebibytes;
use crate::replay::Curve;

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

/// An `<svg>` element with the curves of one trace, each with a name, and a legend above it.
pub(crate) fn chart(curves: &[(&str, &Curve)]) -> Result<String, Box<dyn Error>> {
    let mut legend = swatch(LIVE, "live");
    for (index, (name, _)) in curves.iter().enumerate() {
        legend.push_str(&swatch(LINES[index % LINES.len()], name));
    }
    let mut svg = String::new();
    draw(&mut svg, curves)?;
    Ok(format!("<p class=\"legend\">{legend}</p>\n{svg}\n"))
}

fn swatch(RGBColor(red, green, blue): RGBColor, label: &str) -> String {
    let label = escape(label);
    format!("<span><i style=\"background:#{red:02x}{green:02x}{blue:02x}\"></i>{label}</span>")
}

fn draw(svg: &mut String, curves: &[(&str, &Curve)]) -> Result<(), Box<dyn Error>> {
    let points = || curves.iter().flat_map(|(_, curve)| &curve.points);
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
    let longest = curves.iter().max_by_key(|(_, curve)| curve.points.len());
    if let Some((_, curve)) = longest {
        let live = curve
            .points
            .iter()
            .map(|point| (point.event, mebibytes(point.live_bytes)));
        chart.draw_series(AreaSeries::new(live, 0.0, LIVE))?;
    }
    for (index, (_, curve)) in curves.iter().enumerate() {
        let line = curve
            .points
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
