//! Live and reserved bytes over the events of a replay, thinned out as they
//! come: a bounded number of points, each the maximum over a run of events, so that no
//! peak is lost.

/// Most points a curve keeps; enough for a chart about as many pixels wide.
const MAX_POINTS: usize = 800;

/// The maxima over a run of consecutive events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// The run's first event, counted from 0.
    pub(crate) event: u64,
    pub(crate) live_bytes: u64,
    pub(crate) reserved_bytes: u64,
}

/// A thinned-out history; at most 800 points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Curve {
    run_events: usize,
    /// In order of events.
    pub(crate) points: Vec<Point>,
}

impl Curve {
    /// An empty curve for a replay of so many events.
    pub(crate) fn new(events: usize) -> Self {
        let run_events = events.div_ceil(MAX_POINTS).max(1);
        Self {
            run_events,
            points: Vec::with_capacity(events.div_ceil(run_events)),
        }
    }

    /// Notes the state after `event`; events come in order.
    pub(crate) fn note(&mut self, event: usize, live_bytes: u64, reserved_bytes: u64) {
        let first = (event - event % self.run_events) as u64;
        match self.points.last_mut() {
            Some(point) if point.event == first => {
                point.live_bytes = point.live_bytes.max(live_bytes);
                point.reserved_bytes = point.reserved_bytes.max(reserved_bytes);
            }
            _ => self.points.push(Point {
                event: first,
                live_bytes,
                reserved_bytes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_events_are_kept_one_by_one() {
        let mut curve = Curve::new(MAX_POINTS);
        for event in 0..MAX_POINTS {
            curve.note(event, event as u64, 2 * event as u64);
        }
        assert_eq!(curve.points.len(), MAX_POINTS);
        assert_eq!(
            curve.points[5],
            Point {
                event: 5,
                live_bytes: 5,
                reserved_bytes: 10
            }
        );
    }

    #[test]
    fn one_event_more_halves_the_points_and_keeps_the_maxima() {
        let events = MAX_POINTS + 1;
        let mut curve = Curve::new(events);
        for event in 0..events {
            curve.note(
                event,
                if event == 6 { 99 } else { 1 },
                if event == 7 { 77 } else { 2 },
            );
        }
        assert_eq!(curve.points.len(), MAX_POINTS / 2 + 1);
        assert_eq!(
            curve.points[3],
            Point {
                event: 6,
                live_bytes: 99,
                reserved_bytes: 77
            }
        );
    }
}
