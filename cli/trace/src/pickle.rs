//! Reads plain data from a pickle: numbers, strings, lists and dictionaries.
//!
//! A pickle is a program for a stack machine. This machine knows the instructions that create plain
//! data, and refuses those that look up or call Python code. A value that is used in several
//! places, such as the frames of a stack, exists only once, and values refer to each other by
//! number. So no function recurses, even if the data is deeply nested, and memory grows with the
//! file, not with the data written out in full.

mod lines;

use std::ops::Range;

use super::Defect;

/// Maximum bytes of a pickle.
pub(super) const MAX_BYTES: u64 = 2 << 30;

/// Maximum number of values. A snapshot with ten million entries has fewer.
const MAX_VALUES: usize = 1 << 26;

/// A value. Cheap to copy; its contents are read through its [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// A whole number, 0 or more.
    Number(u64),
    /// A string: the start and the number of its bytes.
    Text(u32, u32),
    /// A list or a tuple, by number.
    List(u32),
    /// A dictionary, by number.
    Dict(u32),
    True,
    /// A value that no snapshot needs: None, False, a fraction, a negative or very large number, a
    /// set or bytes.
    Other,
}

/// A pickle that has been read completely.
pub(super) struct Pickle<'bytes> {
    bytes: &'bytes [u8],
    values: Vec<Value>,
    /// For each list and dictionary, the numbers of its values. In a dictionary, keys and values
    /// alternate.
    contents: Vec<Vec<u32>>,
    /// The value of the pickle.
    pub(super) root: Value,
}

impl<'bytes> Pickle<'bytes> {
    /// Reads a pickle of protocol 0 to 5.
    pub(super) fn read(bytes: &'bytes [u8]) -> Result<Self, Defect> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Defect::PickleTooLarge);
        }
        let mut machine = Machine {
            bytes,
            at: 0,
            begun: 0,
            values: Vec::new(),
            contents: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        };
        let root = loop {
            if let Some(root) = machine.step()? {
                break root;
            }
        };
        let root = machine.values[root as usize];
        Ok(Self {
            bytes,
            values: machine.values,
            contents: machine.contents,
            root,
        })
    }

    /// Returns the values of a list; `None` if the value is not a list.
    pub(super) fn list(&self, value: Value) -> Option<impl ExactSizeIterator<Item = Value>> {
        let Value::List(list) = value else {
            return None;
        };
        let ids = self.contents[list as usize].iter();
        Some(ids.map(|id| self.values[*id as usize]))
    }

    /// Returns the value of a key in a dictionary; `None` if it has no such key, or the value is
    /// not a dictionary.
    pub(super) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(dict) = value else {
            return None;
        };
        // The last entry with a key counts, as in Python.
        let mut pairs = self.contents[dict as usize].rchunks_exact(2);
        let pair =
            pairs.find(|pair| self.text(self.values[pair[0] as usize]) == Some(key.as_bytes()));
        pair.map(|pair| self.values[pair[1] as usize])
    }

    /// Returns the value of a key in a dictionary, if it is a number.
    pub(super) fn number(&self, value: Value, key: &str) -> Option<u64> {
        match self.get(value, key) {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// Returns the bytes of a string; `None` if the value is not a string.
    pub(super) fn text(&self, value: Value) -> Option<&'bytes [u8]> {
        let Value::Text(start, len) = value else {
            return None;
        };
        self.bytes.get(start as usize..)?.get(..len as usize)
    }
}

/// The stack machine. The stack, the memo and all contents hold numbers of values.
struct Machine<'bytes> {
    bytes: &'bytes [u8],
    at: usize,
    /// Position of the current instruction.
    begun: usize,
    values: Vec<Value>,
    contents: Vec<Vec<u32>>,
    stack: Vec<u32>,
    /// Stack heights to which later instructions return.
    marks: Vec<usize>,
    memo: Vec<Option<u32>>,
}

impl Machine<'_> {
    /// Executes one instruction. After the last instruction, returns the number of the result.
    fn step(&mut self) -> Result<Option<u32>, Defect> {
        self.begun = self.at;
        let opcode = self.byte()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            // The protocol, and frames, which only group the instructions that follow.
            0x80 => {
                let protocol = self.byte()?;
                if !(2..=5).contains(&protocol) {
                    return Err(self.damaged("its protocol is not 2 to 5"));
                }
            }
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b']' | b')' => self.push_list(Vec::new())?,
            b'l' | b't' => {
                let items = self.pop_mark()?;
                self.push_list(items)?;
            }
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(opcode - 0x84))?;
                self.push_list(items)?;
            }
            b'}' => self.push_dict(Vec::new())?,
            b'd' => {
                let items = self.pop_mark()?;
                self.push_dict(items)?;
            }
            b'a' => {
                let items = self.pop_many(1)?;
                self.extend(items, false)?;
            }
            b's' => {
                let items = self.pop_many(2)?;
                self.extend(items, true)?;
            }
            b'e' | b'u' => {
                let items = self.pop_mark()?;
                self.extend(items, opcode == b'u')?;
            }
            b'p' | b'q' | b'r' => {
                let place = self.place(opcode)?;
                self.memoize(place)?;
            }
            0x94 => self.memoize(self.memo.len())?,
            b'g' | b'h' | b'j' => {
                let place = self.place(opcode)?;
                self.recall(place)?;
            }
            b'c'
            | b'R'
            | b'b'
            | b'i'
            | b'o'
            | b'P'
            | b'Q'
            | 0x81..=0x84
            | 0x92
            | 0x93
            | 0x97
            | 0x98 => {
                return Err(Defect::PickleCalls { at: self.begun });
            }
            _ => self.scalar(opcode)?,
        }
        Ok(None)
    }

    /// Executes an instruction that creates a value without contents.
    fn scalar(&mut self, opcode: u8) -> Result<(), Defect> {
        match opcode {
            b'K' => self.small_number(1),
            b'M' => self.small_number(2),
            b'J' => self.long_number(4),
            0x8a | 0x8b => {
                let len = self.length(if opcode == 0x8a { 1 } else { 4 })?;
                self.long_number(len)
            }
            0x88 => self.push(Value::True),
            b'N' | 0x89 => self.push(Value::Other),
            b'G' => self.skip(8),
            // Instructions with lines, in protocols 0 and 1.
            b'I' | b'L' => self.number_line(),
            b'F' => {
                self.line()?;
                self.push(Value::Other)
            }
            b'V' => {
                let line = self.line()?;
                self.push_text(line)
            }
            b'S' => self.quoted_line(),
            // Strings, including those of Python 2.
            0x8c | b'U' => self.text(1),
            b'X' | b'T' => self.text(4),
            0x8d => self.text(8),
            // Bytes.
            b'C' => self.skip_prefixed(1),
            b'B' => self.skip_prefixed(4),
            0x8e | 0x96 => self.skip_prefixed(8),
            // Sets, which no snapshot needs.
            0x8f => self.push(Value::Other),
            0x90 => self.pop_mark().map(drop),
            0x91 => {
                self.pop_mark()?;
                self.push(Value::Other)
            }
            _ => Err(self.damaged("an instruction that is not known")),
        }
    }

    fn damaged(&self, what: &'static str) -> Defect {
        Defect::PickleDamaged {
            at: self.begun,
            what,
        }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Defect> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or(Defect::PickleCut)?;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Defect> {
        let taken = self.take(1)?;
        taken.first().copied().ok_or(Defect::PickleCut)
    }

    /// Reads an unsigned little-endian number of `width` bytes, at most 8.
    fn unsigned(&mut self, width: usize) -> Result<u64, Defect> {
        let taken = self.take(width)?;
        let digits = taken.iter().rev();
        Ok(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, Defect> {
        let length = self.unsigned(width)?;
        usize::try_from(length).map_err(|_| Defect::PickleCut)
    }

    fn small_number(&mut self, width: usize) -> Result<(), Defect> {
        let number = self.unsigned(width)?;
        self.push(Value::Number(number))
    }

    /// Reads a signed little-endian number of `width` bytes.
    fn long_number(&mut self, width: usize) -> Result<(), Defect> {
        let taken = self.take(width)?;
        let negative = taken.last().is_some_and(|byte| *byte >= 0x80);
        let (low, high) = taken.split_at(width.min(8));
        let value = if negative || high.iter().any(|byte| *byte != 0) {
            Value::Other
        } else {
            let digits = low.iter().rev();
            Value::Number(digits.fold(0, |number, byte| number << 8 | u64::from(*byte)))
        };
        self.push(value)
    }

    fn text(&mut self, width: usize) -> Result<(), Defect> {
        let length = self.length(width)?;
        let start = self.at;
        self.take(length)?;
        self.push_text(start..self.at)
    }

    fn push_text(&mut self, place: Range<usize>) -> Result<(), Defect> {
        let length = u32::try_from(place.len()).ok();
        let place = u32::try_from(place.start).ok().zip(length);
        let (start, length) = place.ok_or_else(|| self.damaged("a text beyond 4 GiB"))?;
        self.push(Value::Text(start, length))
    }

    fn skip(&mut self, count: usize) -> Result<(), Defect> {
        self.take(count)?;
        self.push(Value::Other)
    }

    fn skip_prefixed(&mut self, width: usize) -> Result<(), Defect> {
        let length = self.length(width)?;
        self.skip(length)
    }

    fn push(&mut self, value: Value) -> Result<(), Defect> {
        if self.values.len() == MAX_VALUES {
            return Err(Defect::PickleTooLarge);
        }
        // The number is below the limit, so it fits.
        self.stack.push(self.values.len() as u32);
        self.values.push(value);
        Ok(())
    }

    fn push_list(&mut self, items: Vec<u32>) -> Result<(), Defect> {
        // The number fits, since there are at most as many contents as values.
        let number = self.contents.len() as u32;
        self.contents.push(items);
        self.push(Value::List(number))
    }

    fn push_dict(&mut self, items: Vec<u32>) -> Result<(), Defect> {
        if !items.len().is_multiple_of(2) {
            return Err(self.damaged("a key without a value"));
        }
        let number = self.contents.len() as u32;
        self.contents.push(items);
        self.push(Value::Dict(number))
    }

    /// Returns the stack height below which instructions after the current mark may not reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<u32, Defect> {
        if self.stack.len() <= self.floor() {
            return Err(self.damaged("the stack is empty"));
        }
        self.stack
            .pop()
            .ok_or_else(|| self.damaged("the stack is empty"))
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<u32>, Defect> {
        let start = self.stack.len().checked_sub(count);
        match start.filter(|start| *start >= self.floor()) {
            Some(start) => Ok(self.stack.split_off(start)),
            None => Err(self.damaged("the stack is too short")),
        }
    }

    /// Pops the values above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<u32>, Defect> {
        match self.marks.pop() {
            Some(height) => Ok(self.stack.split_off(height)),
            None => Err(self.damaged("no mark is set")),
        }
    }

    /// Appends items to the list on top of the stack, or adds pairs to the dictionary there.
    fn extend(&mut self, items: Vec<u32>, pairs: bool) -> Result<(), Defect> {
        let contents = match self.top().map(|id| self.values[id as usize]) {
            Some(Value::List(number)) if !pairs => number,
            Some(Value::Dict(number)) if pairs && items.len().is_multiple_of(2) => number,
            _ => return Err(self.damaged("it puts values into what takes none")),
        };
        self.contents[contents as usize].extend(items);
        Ok(())
    }

    fn top(&self) -> Option<u32> {
        let above = self.stack.get(self.floor()..)?;
        above.last().copied()
    }

    /// Reads the number of a memo entry in the encoding of the instruction.
    fn place(&mut self, opcode: u8) -> Result<usize, Defect> {
        match opcode {
            b'h' | b'q' => self.length(1),
            b'j' | b'r' => self.length(4),
            _ => self.place_line(),
        }
    }

    /// Stores the top of the stack in the memo. Python numbers the entries consecutively from 0, so
    /// a place far ahead means that the file is damaged.
    fn memoize(&mut self, place: usize) -> Result<(), Defect> {
        let Some(top) = self.top() else {
            return Err(self.damaged("the stack is empty"));
        };
        if place > self.values.len() {
            return Err(self.damaged("a note far ahead of those before"));
        }
        if self.memo.len() <= place {
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = Some(top);
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), Defect> {
        let noted = self.memo.get(place).copied().flatten();
        let id = noted.ok_or_else(|| self.damaged("a note that was never made"))?;
        self.stack.push(id);
        Ok(())
    }
}
