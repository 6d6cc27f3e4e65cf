//! Reads plain data from a pickle: numbers, strings, lists and dictionaries.
//!
//! A pickle is a program for a stack machine. This machine knows the instructions that create plain
//! data, and refuses those that look up or call Python code. A value that is used in several
//! places, such as the frames of a stack, exists only once, and values refer to each other by
//! number. So no function recurses, even if the data is deeply nested, and memory grows with the
//! file, not with the data written out in full.

mod lines;

use std::iter;
use std::ops::Range;

use super::Defect;

/// Maximum bytes of a pickle.
pub(super) const MAX_BYTES: u64 = 2 << 30;

/// Maximum number of values. A snapshot with ten million entries has fewer.
const MAX_VALUES: usize = 1 << 26;

/// Minimum bytes of a pickle for each value and for each memo entry. Python writes more: a value has
/// an instruction of its own, and another one that memoizes it, names its key or adds it to a list.
const BYTES_PER_VALUE: usize = 2;

/// Maximum number of values on the stack, and of marks. Python adds items to a list or a dictionary
/// a thousand at a time, and nests a thousand of these at most.
const MAX_STACK: usize = 1 << 20;

/// Number of pairs of a dictionary among which a key is looked up, several times the number in
/// PyTorch's largest dictionary. So a look-up takes constant time.
const MAX_PAIRS: usize = 64;

/// A value. Cheap to copy; its contents are read through its [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    /// A whole number, 0 or more.
    Number(u64),
    /// A string: the start and the number of its bytes.
    Text(u32, u32),
    /// A list or a tuple.
    List(Contents),
    /// A dictionary, in which keys and values alternate.
    Dict(Contents),
    True,
    /// A value that no snapshot needs: None, False, a fraction, a negative or very large number, a
    /// set or bytes.
    Other,
}

/// The runs with the contents of a list or a dictionary: the numbers of the first and the last of
/// them, or `NONE` if it is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contents {
    first: u32,
    last: u32,
}

/// Adjacent places in `Data::items`.
struct Run {
    start: u32,
    end: u32,
    /// The number of the next run of the same list or dictionary, or `NONE`.
    next: u32,
}

/// The number of no value and no run.
const NONE: u32 = u32::MAX;

/// The numbers of values that exist only once.
const TRUE: u32 = 0;
const OTHER: u32 = 1;

/// Values, by number, and the contents of lists and dictionaries.
struct Data {
    values: Vec<Value>,
    /// The numbers of the values in lists and dictionaries.
    items: Vec<u32>,
    runs: Vec<Run>,
}

impl Data {
    /// Returns the values of a list, or the keys and values of a dictionary.
    fn items(&self, contents: Contents) -> impl Iterator<Item = Value> {
        let run = |number: u32| self.runs.get(number as usize);
        let runs = iter::successors(run(contents.first), move |last| run(last.next));
        let items = runs.flat_map(|run| &self.items[run.start as usize..run.end as usize]);
        items.map(|id| self.values[*id as usize])
    }

    /// Appends items to contents.
    fn append(&mut self, contents: &mut Contents, items: impl Iterator<Item = u32>) {
        let start = self.items.len() as u32;
        self.items.extend(items);
        // There are fewer items and runs than bytes, so the numbers fit.
        let end = self.items.len() as u32;
        if start == end {
            return;
        }
        let number = self.runs.len() as u32;
        match self.runs.get_mut(contents.last as usize) {
            Some(last) if last.end == start => {
                last.end = end;
                return;
            }
            Some(last) => last.next = number,
            None => contents.first = number,
        }
        contents.last = number;
        self.runs.push(Run {
            start,
            end,
            next: NONE,
        });
    }
}

/// A pickle that has been read completely.
pub(super) struct Pickle<'bytes> {
    bytes: &'bytes [u8],
    data: Data,
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
            data: Data {
                values: vec![Value::True, Value::Other],
                items: Vec::new(),
                runs: Vec::new(),
            },
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        };
        let root = loop {
            if let Some(root) = machine.step()? {
                break root;
            }
        };
        let root = machine.data.values[root as usize];
        Ok(Self {
            bytes,
            data: machine.data,
            root,
        })
    }

    /// Returns the values of a list; `None` if the value is not a list.
    pub(super) fn list(&self, value: Value) -> Option<impl Iterator<Item = Value>> {
        match value {
            Value::List(contents) => Some(self.data.items(contents)),
            _ => None,
        }
    }

    /// Returns the value of a key in a dictionary; `None` if it has no such key among its first
    /// pairs, or the value is not a dictionary.
    pub(super) fn get(&self, value: Value, key: &str) -> Option<Value> {
        let Value::Dict(contents) = value else {
            return None;
        };
        let mut items = self.data.items(contents);
        let pairs = iter::from_fn(|| items.next().zip(items.next()));
        let same = pairs
            .take(MAX_PAIRS)
            .filter(|(found, _)| self.text(*found) == Some(key.as_bytes()));
        // The last entry with a key counts, as in Python.
        same.last().map(|(_, value)| value)
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

/// The stack machine. The stack and the memo hold numbers of values.
struct Machine<'bytes> {
    bytes: &'bytes [u8],
    at: usize,
    /// Position of the current instruction.
    begun: usize,
    data: Data,
    stack: Vec<u32>,
    /// Stack heights to which later instructions return.
    marks: Vec<usize>,
    /// The value of each memo entry, or `NONE`.
    memo: Vec<u32>,
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
            b'(' => self.mark()?,
            b'0' => drop(self.pop()?),
            b'1' => self.drop_to_mark()?,
            b']' | b')' => self.push_contents(self.stack.len(), Value::List)?,
            b'l' | b't' => {
                let from = self.pop_mark()?;
                self.push_contents(from, Value::List)?;
            }
            0x85..=0x87 => {
                let from = self.below(usize::from(opcode - 0x84))?;
                self.push_contents(from, Value::List)?;
            }
            b'}' => self.push_contents(self.stack.len(), Value::Dict)?,
            b'd' => {
                let from = self.pop_mark()?;
                self.push_contents(from, Value::Dict)?;
            }
            b'a' | b's' => {
                let from = self.below(if opcode == b'a' { 1 } else { 2 })?;
                self.extend(from, opcode == b's')?;
            }
            b'e' | b'u' => {
                let from = self.pop_mark()?;
                self.extend(from, opcode == b'u')?;
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
            0x88 => self.push_id(TRUE),
            b'N' | 0x89 => self.push_id(OTHER),
            b'G' => self.skip(8),
            // Instructions with lines, in protocols 0 and 1.
            b'I' | b'L' => self.number_line(),
            b'F' => {
                self.line()?;
                self.push_id(OTHER)
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
            0x8f => self.push_id(OTHER),
            0x90 => self.drop_to_mark(),
            0x91 => {
                self.drop_to_mark()?;
                self.push_id(OTHER)
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
        self.push_id(OTHER)
    }

    fn skip_prefixed(&mut self, width: usize) -> Result<(), Defect> {
        let length = self.length(width)?;
        self.skip(length)
    }

    fn push(&mut self, value: Value) -> Result<(), Defect> {
        let id = match value {
            Value::True => TRUE,
            Value::Other => OTHER,
            _ => {
                let count = self.data.values.len();
                if count == MAX_VALUES {
                    return Err(Defect::PickleTooLarge);
                }
                if count > 2 + self.bytes.len() / BYTES_PER_VALUE {
                    return Err(self.damaged("it has more values than Python writes in its bytes"));
                }
                self.data.values.push(value);
                // The number is below the limit, so it fits.
                count as u32
            }
        };
        self.push_id(id)
    }

    /// Pushes the number of a value.
    fn push_id(&mut self, id: u32) -> Result<(), Defect> {
        if self.stack.len() == MAX_STACK {
            return Err(self.damaged("its stack has more than 1048576 values"));
        }
        self.stack.push(id);
        Ok(())
    }

    fn mark(&mut self) -> Result<(), Defect> {
        if self.marks.len() == MAX_STACK {
            return Err(self.damaged("its stack has more than 1048576 marks"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Moves the values of the stack from a height on into a new list or dictionary, and pushes it.
    fn push_contents(&mut self, from: usize, kind: fn(Contents) -> Value) -> Result<(), Defect> {
        let mut contents = Contents {
            first: NONE,
            last: NONE,
        };
        let is_dict = matches!(kind(contents), Value::Dict(_));
        if is_dict && !(self.stack.len() - from).is_multiple_of(2) {
            return Err(self.damaged("a key without a value"));
        }
        self.data.append(&mut contents, self.stack.drain(from..));
        self.push(kind(contents))
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

    /// Returns the stack height below the top `count` values.
    fn below(&self, count: usize) -> Result<usize, Defect> {
        let height = self.stack.len().checked_sub(count);
        let height = height.filter(|height| *height >= self.floor());
        height.ok_or_else(|| self.damaged("the stack is too short"))
    }

    /// Removes the last mark. Returns its stack height.
    fn pop_mark(&mut self) -> Result<usize, Defect> {
        let height = self.marks.pop();
        height.ok_or_else(|| self.damaged("no mark is set"))
    }

    /// Removes the last mark, and the values above it.
    fn drop_to_mark(&mut self) -> Result<(), Defect> {
        let height = self.pop_mark()?;
        self.stack.truncate(height);
        Ok(())
    }

    /// Moves the values of the stack from a height on into the list below them, or, as pairs, into
    /// the dictionary there.
    fn extend(&mut self, from: usize, pairs: bool) -> Result<(), Defect> {
        let wrong = "it puts values into what takes none";
        let below = from.checked_sub(1).filter(|below| *below >= self.floor());
        let id = below.ok_or_else(|| self.damaged(wrong))?;
        let id = self.stack[id] as usize;
        let mut contents = match self.data.values[id] {
            Value::List(contents) if !pairs => contents,
            Value::Dict(contents) if pairs && (self.stack.len() - from).is_multiple_of(2) => {
                contents
            }
            _ => return Err(self.damaged(wrong)),
        };
        self.data.append(&mut contents, self.stack.drain(from..));
        self.data.values[id] = match pairs {
            false => Value::List(contents),
            true => Value::Dict(contents),
        };
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
        if place > self.bytes.len() / BYTES_PER_VALUE {
            return Err(self.damaged("a note far ahead of those before"));
        }
        if self.memo.len() <= place {
            self.memo.resize(place + 1, NONE);
        }
        self.memo[place] = top;
        Ok(())
    }

    fn recall(&mut self, place: usize) -> Result<(), Defect> {
        match self.memo.get(place) {
            Some(&id) if id != NONE => self.push_id(id),
            _ => Err(self.damaged("a note that was never made")),
        }
    }
}
