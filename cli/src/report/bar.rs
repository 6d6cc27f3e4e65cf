//! Bars in the tables of a page. A bar shows a figure of several runs; colour and stripes
//! distinguish bars.

/// Colours that readers with red-green colour blindness can distinguish.
const COLOURS: [&str; 8] = [
    "#0b6e4f", "#56b4e9", "#d55e00", "#cc79a7", "#e69f00", "#0072b2", "#8c6d31", "#8a8f98",
];

/// Number of stripe patterns, which the page's style calls `s0` to `s4`. It has no common divisor
/// with the number of colours, so that there are 40 different looks.
const STRIPES: usize = 5;

/// A figure, as a fraction of the longest bar's length.
pub(crate) struct Bar {
    /// Selects colour and stripes.
    pub(crate) look: usize,
    pub(crate) middle: f64,
    /// The lowest and the highest figure, if there are several runs.
    pub(crate) range: Option<(f64, f64)>,
}

impl Bar {
    /// Renders the bar. A bar that is too long ends in teeth, and a range beyond its end is
    /// omitted.
    pub(super) fn html(&self) -> String {
        let percent = |part: f64| 100.0 * part.min(1.0);
        let cut = if self.middle > 1.0 { " cut" } else { "" };
        let range = self
            .range
            .filter(|(low, _)| *low <= 1.0)
            .map(|(low, high)| {
                let (low, high) = (percent(low), percent(high));
                format!("<u style=\"left:{low:.2}%;width:{:.2}%\"></u>", high - low)
            });
        format!(
            "<div class=\"bar\"><b class=\"{}{cut}\" style=\"width:{:.2}%;background-color:{}\"></b>{}</div>",
            stripes(self.look),
            percent(self.middle),
            colour(self.look),
            range.unwrap_or_default()
        )
    }
}

/// Returns a box that looks like a bar.
pub(crate) fn swatch(look: usize) -> String {
    let (stripes, colour) = (stripes(look), colour(look));
    format!("<i class=\"{stripes}\" style=\"background-color:{colour}\"></i>")
}

const fn colour(look: usize) -> &'static str {
    COLOURS[look % COLOURS.len()]
}

fn stripes(look: usize) -> String {
    format!("s{}", look % STRIPES)
}
