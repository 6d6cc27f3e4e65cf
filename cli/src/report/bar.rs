//! Bars in the tables of a page. A bar shows a figure of several runs.

/// A figure, as a fraction of the longest bar's length.
pub(crate) struct Bar {
    /// Whether the figure is Larder's, which has a colour of its own.
    pub(crate) ours: bool,
    pub(crate) middle: f64,
    /// The lowest and the highest figure, if there are several runs.
    pub(crate) range: Option<(f64, f64)>,
}

impl Bar {
    /// Renders the bar. A bar that is too long ends in teeth, and a range beyond its end is
    /// omitted.
    pub(super) fn html(&self) -> String {
        let percent = |part: f64| 100.0 * part.min(1.0);
        let ours = if self.ours { " ours" } else { "" };
        let cut = if self.middle > 1.0 {
            " class=\"cut\""
        } else {
            ""
        };
        let range = self
            .range
            .filter(|(low, _)| *low <= 1.0)
            .map(|(low, high)| {
                let (low, high) = (percent(low), percent(high));
                format!("<u style=\"left:{low:.2}%;width:{:.2}%\"></u>", high - low)
            });
        format!(
            "<div class=\"bar{ours}\"><b{cut} style=\"width:{:.2}%\"></b>{}</div>",
            percent(self.middle),
            range.unwrap_or_default()
        )
    }
}
