//! Makes the next decision: a heuristic chooses one of the items that may be placed now.

use super::item::PLACED;
use super::search::PackSearch;
use super::tables::PackTables;

/// The rule that chooses a section. The section's lowest item is decided next, or an item below that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heuristic {
    /// The section with the least `floor * level + spare`, which prefers low floors and few spare bytes.
    LevelAndSpare { level: u64 },
    /// The section where the last branch died, if it has an unplaced item; otherwise the one that `LevelAndSpare`
    /// chooses.
    LastDeath { level: u64 },
    /// The section where most branches died.
    Deaths,
    /// The section with the fewest spare bytes in proportion to the deaths seen there.
    SpareByDeaths,
}

/// The height divided by this is added to the spare bytes of a section, so that a section without spare bytes does not
/// win regardless of deaths.
const SPARE_SHARE: u64 = 1024;

/// Returns the index of an unplaced item and the number of records examined. None of the item's unplaced neighbours may
/// lie lower (PACK2). There must be at least one unplaced item.
pub(super) fn choose(
    search: &PackSearch,
    tables: &PackTables<'_>,
    heuristic: &Heuristic,
) -> (usize, u64) {
    let mut records = (search.sections + search.unplaced) as u64;
    let section = section(search, tables, heuristic) as u32;
    let items = tables.unplaced[..search.unplaced].iter();
    let key = |index: usize| (tables.items[index].lowest, tables.items[index].rank);
    let mut best = items
        .map(|&index| index as usize)
        .filter(|&index| {
            let item = &tables.items[index];
            item.lo <= section && section < item.hi
        })
        .min_by_key(|&index| key(index))
        .unwrap_or(tables.unplaced[0] as usize);
    loop {
        let lowest = tables.items[best].lowest;
        let neighbours = &tables.neighbours[tables.items[best].range()];
        records += neighbours.len() as u64;
        let lower = neighbours
            .iter()
            .map(|&index| index as usize)
            .filter(|&index| {
                let other = &tables.items[index];
                other.slot != PLACED && other.lowest < lowest
            })
            .min_by_key(|&index| key(index));
        match lower {
            Some(index) => best = index,
            None => return (best, records),
        }
    }
}

fn section(search: &PackSearch, tables: &PackTables<'_>, heuristic: &Heuristic) -> usize {
    if let Heuristic::LastDeath { .. } = heuristic
        && tables.sections[..search.sections]
            .get(search.died)
            .is_some_and(|section| section.left > 0)
    {
        return search.died;
    }
    let share = search.height / SPARE_SHARE;
    let mut best = (f64::INFINITY, 0);
    for (index, section) in tables.sections[..search.sections].iter().enumerate() {
        if section.left == 0 {
            continue;
        }
        let spare = search.limit - section.floor - section.left;
        let key = match *heuristic {
            Heuristic::LevelAndSpare { level } | Heuristic::LastDeath { level } => {
                section.floor as f64 * level as f64 + spare as f64
            }
            Heuristic::Deaths => -section.deaths,
            Heuristic::SpareByDeaths => (spare + share) as f64 / section.deaths,
        };
        if key < best.0 {
            best = (key, index);
        }
    }
    best.1
}
