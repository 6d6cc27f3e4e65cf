//! The script of a job: a trace cut into its steps, and its peak memory.

use larder_trace::{Event, Trace};

/// The allocator's granule, to which sizes are rounded up before they are added.
const GRANULE_BYTES: u64 = 256;

/// A trace in the form in which a job plays it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct JobScript {
    /// The events between two step marks. Blocks that are live at the end are freed there.
    pub(super) segments: Vec<Vec<Event>>,
    /// Maximum live bytes, with sizes rounded up to granules.
    pub(super) peak_bytes: u64,
}

impl JobScript {
    /// Creates the script of a trace with all sizes divided by `scale`, rounded up.
    pub(super) fn new(trace: &Trace, scale: u64) -> Self {
        let mut segments = vec![Vec::new()];
        let mut sizes = Vec::new();
        let (mut live, mut peak_bytes) = (0u64, 0);
        for event in trace.events() {
            match *event {
                Event::Step { .. } => {
                    segments.push(Vec::new());
                    continue;
                }
                Event::Alloc { id, bytes } => {
                    let bytes = bytes.div_ceil(scale.max(1));
                    let piece = bytes.next_multiple_of(GRANULE_BYTES);
                    sizes.push(piece);
                    live += piece;
                    peak_bytes = live.max(peak_bytes);
                    push(&mut segments, Event::Alloc { id, bytes });
                }
                Event::Free { id } => {
                    // A trace frees only blocks that it allocated.
                    live -= sizes.get(id as usize).copied().unwrap_or(0);
                    push(&mut segments, *event);
                }
            }
        }
        segments.retain(|events| !events.is_empty());
        Self {
            segments,
            peak_bytes,
        }
    }

    /// Returns the bytes that a job requests from a coordinator: the peak, and for gaps between
    /// blocks an eighth of it and 4 MiB.
    pub(super) fn wanted_bytes(&self) -> u64 {
        self.peak_bytes + self.peak_bytes / 8 + (4 << 20)
    }
}

fn push(segments: &mut [Vec<Event>], event: Event) {
    if let Some(last) = segments.last_mut() {
        last.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_cut_at_its_steps_and_its_peak_is_counted_in_pieces() {
        let text =
            "# alloc-trace v1: a <id> <bytes>\ns 0\na 0 1000\na 1 300\ns 1\nf 0\na 2 1\nf 1\ns 2\n";
        let trace = larder_trace::read(std::path::Path::new("t"), text.as_bytes()).unwrap();
        let whole = JobScript::new(&trace, 1);
        assert_eq!(whole.segments.len(), 2);
        assert_eq!(whole.segments[0].len(), 2);
        assert_eq!(whole.peak_bytes, 1024 + 512);
        let scaled = JobScript::new(&trace, 100);
        assert_eq!(scaled.segments[0][1], Event::Alloc { id: 1, bytes: 3 });
        assert_eq!(scaled.peak_bytes, 512);
        assert!(scaled.wanted_bytes() > scaled.peak_bytes);
    }
}
