//! [`FrameRule`]: how to find the caller's frame from a function's frame, as read from the
//! exception tables (`.eh_frame`: DWARF 5, 6.4, as in the ABI of Linux). Rare forms have no rule.

/// Registers by their numbers in the tables.
const RBP: u64 = 6;
const RSP: u64 = 7;
const RETURN: u64 = 16;
const WORD: i64 = 8;

/// The rule that leads from a function's frame, at one of the function's calls, to the caller's
/// frame. The frame ends at a fixed distance from `rsp` or `rbp`; the return address is the frame's
/// last word.
///
/// Stored as a number, so that it fits into an entry of a table: the words from that register to
/// the end in 20 bits, the words from the place of the saved `rbp` to the end in 8 bits (0 if `rbp`
/// is still the caller's), and a bit for `rbp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FrameRule(u32);

impl FrameRule {
    /// The rule of a frame without a caller.
    pub(super) const OUTERMOST: Self = Self(1 << 29);
    /// No rule: only the unwinder can step.
    pub(super) const NONE: Self = Self(1 << 30);
    const BY_RBP: u32 = 1 << 28;

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the distance to the frame's end is measured from `rbp`; if not, it is
    /// measured from `rsp`.
    pub(super) const fn is_by_rbp(self) -> bool {
        self.0 & Self::BY_RBP != 0
    }

    /// Returns the words from that register to the frame's end.
    pub(super) const fn words(self) -> usize {
        (self.0 & 0xF_FFFF) as usize
    }

    /// Returns the words from the saved `rbp` to the frame's end, if the function saved it.
    pub(super) const fn saved_rbp_words(self) -> Option<usize> {
        match (self.0 >> 20 & 0xFF) as usize {
            0 => None,
            words => Some(words),
        }
    }

    /// Returns the rule at the return address `place`, in a function that starts at `function`.
    /// `entry` is the function's table entry, and `common` is the shared entry to which it refers.
    /// Returns `None` if the unwinder must step.
    pub(super) fn of(entry: &[u8], common: &[u8], function: usize, place: usize) -> Option<Self> {
        let (mut entry, mut common) = (Bytes(entry), SharedEntry::read(common)?);
        // The length, the distance to the common entry, and the function's start and length.
        entry.skip(16)?;
        let augmentation = entry.unsigned()?;
        entry.skip(augmentation)?;
        let nothing = UnwindRow {
            register: 0,
            distance: 0,
            rbp: Saved::Nowhere,
            return_address: Saved::Nowhere,
        };
        let first = run(common.program, &common, nothing, nothing, 0, usize::MAX)?;
        common.program = entry;
        run(entry, &common, first, first, function, place)?.rule()
    }
}

/// A table entry that many functions share.
#[derive(Clone, Copy)]
struct SharedEntry<'a> {
    code_unit: u64,
    data_unit: i64,
    program: Bytes<'a>,
}

impl<'a> SharedEntry<'a> {
    fn read(entry: &'a [u8]) -> Option<Self> {
        let mut bytes = Bytes(entry);
        // The length, and a 0.
        bytes.skip(8)?;
        let is_known_version = matches!(bytes.byte()?, 1 | 3);
        let letters = bytes.0.iter().position(|&letter| letter == 0)?;
        let (letters, _) = bytes.0.split_at_checked(letters)?;
        bytes.skip(letters.len() as u64 + 1)?;
        // An `S` would be the frame of a signal. The value of the last letter is the last value,
        // and is one byte: the encoding of addresses, which must be numbers of four bytes.
        let (b'R', [b'z', rest @ ..]) = (letters.last()?, letters) else {
            return None;
        };
        let is_plain = rest.iter().all(|letter| b"PLR".contains(letter));
        let (code_unit, data_unit) = (bytes.unsigned()?, bytes.signed()?);
        let is_return = bytes.unsigned()? == RETURN;
        let augmentation = bytes.unsigned()?;
        bytes.skip(augmentation.checked_sub(1)?)?;
        let is_short = bytes.byte()? & 7 == 3;
        (is_known_version && is_plain && is_return && is_short).then_some(Self {
            code_unit,
            data_unit,
            program: bytes,
        })
    }
}

/// The place of the caller's value of a register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// Still in the register.
    Nowhere,
    /// On the stack, this many bytes above the end of the frame.
    At(i64),
    Lost,
    Otherwise,
}

/// The state that applies from one address of a function.
#[derive(Clone, Copy)]
struct UnwindRow {
    register: u64,
    /// Distance from the register to the frame's end.
    distance: i64,
    rbp: Saved,
    return_address: Saved,
}

impl UnwindRow {
    fn save(&mut self, register: u64, saved: Saved) {
        match register {
            RBP => self.rbp = saved,
            RETURN => self.return_address = saved,
            _ => {}
        }
    }

    fn restore(&mut self, register: u64, first: &Self) {
        match register {
            RBP => self.rbp = first.rbp,
            RETURN => self.return_address = first.return_address,
            _ => {}
        }
    }

    fn rule(&self) -> Option<FrameRule> {
        match self.return_address {
            Saved::Lost => return Some(FrameRule::OUTERMOST),
            Saved::At(distance) if distance == -WORD => {}
            _ => return None,
        }
        let saved_rbp = match self.rbp {
            Saved::Nowhere => 0,
            Saved::At(distance) => words(distance.checked_neg()?, 2..1 << 8)?,
            Saved::Lost | Saved::Otherwise => return None,
        };
        let by_rbp = match self.register {
            RSP => 0,
            RBP => FrameRule::BY_RBP,
            _ => return None,
        };
        let distance = words(self.distance, 1..1 << 20)?;
        Some(FrameRule(distance | saved_rbp << 20 | by_rbp))
    }
}

/// Converts bytes to words, if they are whole words and in `range`.
fn words(bytes: i64, range: core::ops::Range<u32>) -> Option<u32> {
    let words = u32::try_from(bytes / WORD).ok()?;
    (bytes % WORD == 0 && range.contains(&words)).then_some(words)
}

/// Runs a program that begins at `start` with `row`. Returns the row at `place`.
fn run(
    mut program: Bytes,
    common: &SharedEntry,
    first: UnwindRow,
    mut row: UnwindRow,
    start: usize,
    place: usize,
) -> Option<UnwindRow> {
    let (mut kept, mut kept_count) = ([row; 4], 0_usize);
    let mut at = start;
    while at < place && !program.0.is_empty() {
        let operation = program.byte()?;
        let low = u64::from(operation & 0x3F);
        let mut steps = 0;
        match (operation >> 6, low) {
            (1, _) => steps = low,
            (2, _) => row.save(low, program.behind_end(common)?),
            (3, _) => row.restore(low, &first),
            // No operation.
            (_, 0) => {}
            (_, 0x02) => steps = program.number(1)?,
            (_, 0x03) => steps = program.number(2)?,
            (_, 0x04) => steps = program.number(4)?,
            (_, 0x05) => {
                let register = program.unsigned()?;
                row.save(register, program.behind_end(common)?);
            }
            (_, 0x06) => row.restore(program.unsigned()?, &first),
            (_, 0x07) => row.save(program.unsigned()?, Saved::Lost),
            (_, 0x08) => row.save(program.unsigned()?, Saved::Nowhere),
            (_, 0x0A) => {
                *kept.get_mut(kept_count)? = row;
                kept_count += 1;
            }
            (_, 0x0B) => {
                kept_count = kept_count.checked_sub(1)?;
                row = *kept.get(kept_count)?;
            }
            (_, 0x0C) => {
                row.register = program.unsigned()?;
                row.distance = i64::try_from(program.unsigned()?).ok()?;
            }
            (_, 0x0D) => row.register = program.unsigned()?,
            (_, 0x0E) => row.distance = i64::try_from(program.unsigned()?).ok()?,
            // An expression defines the frame's end, until another register does.
            (_, 0x0F) => {
                program.skip_expression()?;
                row.register = u64::MAX;
            }
            // An expression gives the place of a saved register, or its value.
            (_, 0x10 | 0x16) => {
                row.save(program.unsigned()?, Saved::Otherwise);
                program.skip_expression()?;
            }
            // Bytes of arguments on the stack.
            (_, 0x2E) => {
                program.unsigned()?;
            }
            _ => return None,
        }
        at = at.checked_add(usize::try_from(steps.checked_mul(common.code_unit)?).ok()?)?;
    }
    Some(row)
}

/// Bytes not yet read.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// Reads a number of `bytes` bytes, the lowest first.
    fn number(&mut self, bytes: u32) -> Option<u64> {
        let mut number = 0;
        for place in 0..bytes {
            number |= u64::from(self.byte()?) << (8 * place);
        }
        Some(number)
    }

    /// Reads a number of variable length (LEB128). Returns it, and the number of bits read.
    fn number_of_any_length(&mut self) -> Option<(u64, u32)> {
        let (mut number, mut bits) = (0, 0);
        loop {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F).checked_shl(bits)?;
            bits += 7;
            if byte & 0x80 == 0 {
                return Some((number, bits));
            }
        }
    }

    fn unsigned(&mut self) -> Option<u64> {
        Some(self.number_of_any_length()?.0)
    }

    fn signed(&mut self) -> Option<i64> {
        let (number, bits) = self.number_of_any_length()?;
        let unused = 64_u32.saturating_sub(bits);
        Some((number << unused).cast_signed() >> unused)
    }

    /// Reads the place of a saved register.
    fn behind_end(&mut self, common: &SharedEntry) -> Option<Saved> {
        let units = i64::try_from(self.unsigned()?).ok()?;
        Some(Saved::At(units.checked_mul(common.data_unit)?))
    }

    fn skip_expression(&mut self) -> Option<()> {
        let bytes = self.unsigned()?;
        self.skip(bytes)
    }
}
