//! Rounding, and the search (FIT1 to FIT3).

use larder_core::Request;

use super::{ModelBfc, ModelError, Place};

/// A piece that serves the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) padding: u64,
    pub(crate) wait: Option<(u8, u64)>,
}

impl ModelBfc {
    /// Returns the size class. Each size below 64 granules has its own class; above that, each doubling is split into
    /// 32 classes.
    pub(crate) fn class(&self, bytes: u64) -> u64 {
        let granules = bytes / self.config.granule_bytes;
        if granules < 64 {
            return granules;
        }
        let log2 = u64::from(granules.ilog2());
        let step = 1 << (log2 - 5);
        log2 * 1000 + (granules - (1 << log2)) / step
    }

    /// Returns the requested bytes, rounded up to whole granules.
    pub(crate) fn round(&self, request: &Request) -> Result<u64, ModelError> {
        if request.bytes == 0 {
            return Err(ModelError::ZeroSize);
        }
        let granule = self.config.granule_bytes;
        let granules = u128::from(request.bytes).div_ceil(u128::from(granule));
        let align = u128::from((request.align.bytes() / granule).max(1));
        if granules + align - 1 > u128::from(u32::MAX) || align > 1 << 31 {
            return Err(ModelError::TooLarge(request.bytes));
        }
        Ok(request.bytes.next_multiple_of(granule))
    }

    pub(crate) fn search(&self, need: u64, request: &Request, scan: usize) -> Option<Found> {
        if self.exceeds_limit(need) {
            return None;
        }
        let wilderness = self.wilderness();
        let mut free: Vec<Place> = self
            .places()
            .filter(|place| self.at(*place).is_free() && Some(*place) != wilderness)
            .filter(|place| self.class(self.at(*place).bytes) >= self.class(need))
            .collect();
        // By ascending class, and the newest first within a class.
        free.sort_by_key(|place| {
            let piece = self.at(*place);
            (self.class(piece.bytes), std::cmp::Reverse(piece.rank()))
        });
        free.chunk_by(|a, b| self.class(self.at(*a).bytes) == self.class(self.at(*b).bytes))
            .find_map(|class| self.best(&class[..class.len().min(scan)], need, request))
            .or_else(|| self.judge(wilderness?, need, request))
    }

    fn best(&self, looked_at: &[Place], need: u64, request: &Request) -> Option<Found> {
        let serving = looked_at
            .iter()
            .filter_map(|place| self.judge(*place, need, request));
        let exact = serving.clone().find(|found| {
            found.wait.is_none() && found.padding == 0 && self.at(found.place).bytes == need
        });
        exact.or_else(|| {
            serving.min_by_key(|found| {
                let piece = self.at(found.place);
                (found.wait.is_some(), piece.bytes, piece.start)
            })
        })
    }

    fn judge(&self, place: Place, need: u64, request: &Request) -> Option<Found> {
        let piece = self.at(place);
        let padding = piece.start.next_multiple_of(request.align.bytes()) - piece.start;
        if piece.bytes < padding + need {
            return None;
        }
        let wait = match self.pending(piece.point()) {
            None => None,
            Some((stream, event)) if stream == request.stream.number() => {
                let too_late = request.freed_by.is_some_and(|by| event > by.number());
                if too_late {
                    return None;
                }
                None
            }
            Some(point) if request.may_wait => Some(point),
            Some(_) => return None,
        };
        Some(Found {
            place,
            padding,
            wait,
        })
    }
}
