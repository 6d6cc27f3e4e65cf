//! Joining free pieces: which pieces may join, the point of the result, and its place in its list.

use super::{ModelBfc, Piece, Place, State};

impl ModelBfc {
    fn points_decide(&self) -> bool {
        self.any_with_point() && (self.many_streams || self.apart)
    }

    /// Joins a freed piece with the free pieces that it may join: first those behind it, then those in front of it.
    /// `wilderness` is the start of the wilderness before the operation.
    pub(crate) fn join_with_neighbours(&mut self, (region, piece): Place, wilderness: Option<u64>) {
        let mut piece = piece;
        // If points decide which pieces join, the result is the newest of its list.
        let with_point = self.points_decide();
        while let Some(point) = self.joined_point((region, piece), (region, piece + 1)) {
            let upper = self.at((region, piece + 1));
            self.merge((region, piece), point, upper, wilderness, !with_point);
        }
        while piece > 0
            && let Some(point) = self.joined_point((region, piece - 1), (region, piece))
        {
            piece -= 1;
            let lower = self.at((region, piece));
            self.merge((region, piece), point, lower, wilderness, !with_point);
        }
    }

    /// Joins a piece with the next one. With `may_keep`, the result keeps the place of `survivor` in its list if
    /// `survivor` was in one and the class is the same.
    fn merge(
        &mut self,
        (region, piece): Place,
        point: Option<(u8, u64)>,
        survivor: Piece,
        wilderness: Option<u64>,
        may_keep: bool,
    ) {
        let upper = self.regions[region].pieces.remove(piece + 1);
        let bytes = self.at((region, piece)).bytes + upper.bytes;
        let listed = wilderness != Some(survivor.start);
        let keeps = may_keep && listed && self.class(bytes) == self.class(survivor.bytes);
        let rank = if keeps {
            survivor.rank()
        } else {
            self.next_rank()
        };
        let piece = &mut self.regions[region].pieces[piece];
        piece.bytes = bytes;
        piece.state = State::Free { point, rank };
    }

    /// Returns the point of the joined piece if both pieces are free and may join.
    #[expect(clippy::option_option, reason = "may join, and with which point")]
    fn joined_point(&self, a: Place, b: Place) -> Option<Option<(u8, u64)>> {
        let pieces = &self.regions[a.0].pieces;
        let (a, b) = (pieces.get(a.1)?, pieces.get(b.1)?);
        if !a.is_free() || !b.is_free() {
            return None;
        }
        match (self.pending(a.point()), self.pending(b.point())) {
            (None, None) => Some(None),
            (Some(_), None) | (None, Some(_)) if self.many_streams => None,
            (Some(one), None) | (None, Some(one)) => Some(Some(one)),
            (Some(a), Some(b)) if a.0 == b.0 => Some(Some((a.0, a.1.max(b.1)))),
            _ => None,
        }
    }

    /// Clears completed points and joins pieces, in address order. A joined piece is the newest of its list.
    pub(super) fn sweep(&mut self) {
        self.clear_points();
        self.advanced = 0;
        self.apart = false;
    }

    fn clear_points(&mut self) {
        if !self.any_with_point() {
            return;
        }
        for region in 0..self.regions.len() {
            let mut piece = 0;
            while piece < self.regions[region].pieces.len() {
                let settled = self.pending(self.at((region, piece)).point());
                if let State::Free { point, .. } = &mut self.regions[region].pieces[piece].state {
                    *point = settled;
                }
                match self.joined_point((region, piece), (region, piece + 1)) {
                    Some(point) => self.merge_anew((region, piece), point),
                    None => piece += 1,
                }
            }
        }
    }

    /// Joins a piece with the next one. The result is the newest of its list.
    pub(super) fn merge_anew(&mut self, (region, piece): Place, point: Option<(u8, u64)>) {
        let upper = self.regions[region].pieces.remove(piece + 1);
        let rank = self.next_rank();
        let piece = &mut self.regions[region].pieces[piece];
        piece.bytes += upper.bytes;
        piece.state = State::Free { point, rank };
    }

    /// Clears the completed points of a piece and the next one, and joins the two. At most one stream may use them.
    pub(super) fn join_by_force(&mut self, (region, piece): Place) {
        for piece in [piece, piece + 1] {
            let settled = self.pending(self.at((region, piece)).point());
            if let State::Free { point, .. } = &mut self.regions[region].pieces[piece].state {
                *point = settled;
            }
        }
        let point = self.forced_point((region, piece));
        self.merge_anew((region, piece), point.expect("one stream at most"));
    }

    /// Returns the point of the joined piece if both pieces are free and their points belong to at most one stream.
    #[expect(clippy::option_option, reason = "may join, and with which point")]
    pub(super) fn forced_point(&self, (region, piece): Place) -> Option<Option<(u8, u64)>> {
        let pieces = &self.regions[region].pieces;
        let (a, b) = (pieces[piece], *pieces.get(piece + 1)?);
        if !a.is_free() || !b.is_free() {
            return None;
        }
        match (a.point(), b.point()) {
            (Some(a), Some(b)) if a.0 == b.0 => Some(Some((a.0, a.1.max(b.1)))),
            (Some(_), Some(_)) => None,
            (a, b) => Some(a.or(b)),
        }
    }
}
