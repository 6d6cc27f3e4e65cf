//! Reads the parts of a module's PTX that the stand-in needs: the kernels with their parameters,
//! and the variables of the module. Skips the instructions.

use std::collections::BTreeSet;

use larder_cuda_abi::Code;

/// The declarations of a module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ptx {
    pub(crate) entries: Vec<PtxKernel>,
    pub(crate) variables: Vec<PtxVariable>,
}

impl Ptx {
    /// Returns whether every name is declared once.
    fn names_differ(&self) -> bool {
        let entries = self.entries.iter().map(|entry| &entry.name);
        let variables = self.variables.iter().map(|variable| &variable.name);
        let mut names = BTreeSet::new();
        entries.chain(variables).all(|name| names.insert(name))
    }
}

/// A kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PtxKernel {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
}

/// A parameter of a kernel, and its offset in the parameter memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameter {
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// A variable in global or constant memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PtxVariable {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    /// First bytes of the initial value; the rest are 0.
    pub(crate) initial: Vec<u8>,
}

/// Maximum total size of a kernel's parameters in bytes, as in CUDA since 12.1.
const MAX_PARAMETERS: usize = 32_764;

/// Reads a text.
///
/// # Errors
/// An invalid image if the text does not begin with `.version`; invalid PTX if it ends inside a
/// block, or has a malformed declaration or the same name twice.
pub(crate) fn read(text: &str) -> Result<Ptx, Code> {
    let tokens = tokens(text);
    let mut reader = PtxReader {
        tokens: &tokens,
        next: 0,
    };
    if reader.take() != Some(".version") {
        return Err(Code::INVALID_IMAGE);
    }
    let mut ptx = Ptx::default();
    let mut external = false;
    let mut depth = 0_u32;
    while let Some(token) = reader.take() {
        match token {
            "{" => depth += 1,
            "}" => depth = depth.checked_sub(1).ok_or(Code::INVALID_PTX)?,
            ".extern" => external = true,
            ";" => external = false,
            ".entry" if depth == 0 => ptx.entries.push(reader.entry()?),
            ".global" | ".const" if depth == 0 => {
                let variable = reader.variable()?;
                if !external {
                    ptx.variables.push(variable);
                }
                external = false;
            }
            _ => {}
        }
    }
    if depth != 0 || !ptx.names_differ() {
        return Err(Code::INVALID_PTX);
    }
    Ok(ptx)
}

/// Splits a text into words and punctuation marks, without comments and strings.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            rest[1..].find('"').map_or(rest.len(), |end| end + 2)
        } else {
            let is_mark = |at: char| !at.is_ascii_alphanumeric() && !"_$.%-".contains(at);
            let length = match rest.find(is_mark) {
                Some(0) => first.len_utf8(),
                Some(end) => end,
                None => rest.len(),
            };
            tokens.push(&rest[..length]);
            length
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The words of a text, and the position of the next one.
struct PtxReader<'a> {
    tokens: &'a [&'a str],
    next: usize,
}

/// A declaration of a `.param` or a variable, without the word that opens it.
struct Declared {
    name: String,
    align: usize,
    /// Size of an element in bytes.
    element: usize,
    /// Number of elements; `None` if the initial value determines it.
    count: Option<usize>,
}

impl<'a> PtxReader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).copied()
    }

    fn take(&mut self) -> Option<&'a str> {
        let token = self.peek();
        self.next += 1;
        token
    }

    /// Takes the word if it comes next.
    fn skip(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.next += usize::from(found);
        found
    }

    fn number(&mut self) -> Result<usize, Code> {
        let word = self.take().ok_or(Code::INVALID_PTX)?;
        let number = integer(word).ok_or(Code::INVALID_PTX)?;
        usize::try_from(number).map_err(|_| Code::INVALID_PTX)
    }

    fn entry(&mut self) -> Result<PtxKernel, Code> {
        let name = self.take().ok_or(Code::INVALID_PTX)?.to_owned();
        let mut parameters = Vec::new();
        let mut end = 0_usize;
        if self.skip("(") && !self.skip(")") {
            loop {
                if !self.skip(".param") {
                    return Err(Code::INVALID_PTX);
                }
                let parameter = self.declared()?;
                let bytes = parameter
                    .element
                    .checked_mul(parameter.count.ok_or(Code::INVALID_PTX)?)
                    .ok_or(Code::INVALID_PTX)?;
                let offset = end.next_multiple_of(parameter.align);
                end = offset.checked_add(bytes).ok_or(Code::INVALID_PTX)?;
                if end > MAX_PARAMETERS {
                    return Err(Code::INVALID_PTX);
                }
                parameters.push(Parameter { offset, bytes });
                match self.take() {
                    Some(",") => {}
                    Some(")") => break,
                    _ => return Err(Code::INVALID_PTX),
                }
            }
        }
        Ok(PtxKernel { name, parameters })
    }

    fn variable(&mut self) -> Result<PtxVariable, Code> {
        let declared = self.declared()?;
        let mut initial = Vec::new();
        let mut values = 0;
        if self.skip("=") {
            while let Some(word) = self.peek().filter(|word| *word != ";") {
                self.next += 1;
                if !matches!(word, "{" | "}" | ",") {
                    // A word that is not a number is an address, which is left 0.
                    let value = integer(word).unwrap_or(0).to_le_bytes();
                    initial.extend(value.iter().cycle().take(declared.element));
                    values += 1;
                }
            }
        }
        let count = declared.count.unwrap_or(values);
        let bytes = declared
            .element
            .checked_mul(count)
            .filter(|bytes| initial.len() <= *bytes)
            .ok_or(Code::INVALID_PTX)?;
        Ok(PtxVariable {
            name: declared.name,
            bytes,
            initial,
        })
    }

    /// Reads alignment, type, name and dimensions.
    fn declared(&mut self) -> Result<Declared, Code> {
        let (mut align, mut element) = (None, None);
        let mut stream_ids = 1;
        let name = loop {
            let word = self.take().ok_or(Code::INVALID_PTX)?;
            match word {
                // The words after `.ptr` describe the pointer's target, whose alignment is not the
                // parameter's.
                ".ptr" => {
                    while self.peek().is_some_and(|word| word.starts_with('.')) {
                        if self.take() == Some(".align") {
                            self.number()?;
                        }
                    }
                }
                ".align" => align = Some(self.number()?),
                ".v2" => stream_ids = 2,
                ".v4" => stream_ids = 4,
                _ if word.starts_with('.') => {
                    if let Some(bytes) = type_bytes(word) {
                        element = Some(bytes);
                    }
                }
                _ => break word.to_owned(),
            }
        };
        let element = element.ok_or(Code::INVALID_PTX)? * stream_ids;
        let align = align.unwrap_or(element);
        let (mut count, mut open) = (1_usize, false);
        while self.skip("[") {
            if self.skip("]") {
                open = true;
                continue;
            }
            let length = self.number()?;
            count = count.checked_mul(length).ok_or(Code::INVALID_PTX)?;
            if !self.skip("]") {
                return Err(Code::INVALID_PTX);
            }
        }
        if !align.is_power_of_two() || align > super::module::MAX_ALIGN {
            return Err(Code::INVALID_PTX);
        }
        Ok(Declared {
            name,
            align,
            element,
            count: (!open).then_some(count),
        })
    }
}

/// Returns the size of a type in bytes, or `None` if the word is not a type.
fn type_bytes(word: &str) -> Option<usize> {
    match word {
        ".texref" | ".samplerref" | ".surfref" => return Some(8),
        ".f16x2" | ".bf16x2" => return Some(4),
        ".bf16" => return Some(2),
        _ => {}
    }
    let bits = word
        .strip_prefix(['.'])?
        .strip_prefix(['b', 'u', 's', 'f'])?;
    match bits {
        "8" => Some(1),
        "16" => Some(2),
        "32" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

/// Reads a number as PTX writes it. For a floating-point number, returns its bits.
fn integer(word: &str) -> Option<u64> {
    let (word, negative) = match word.strip_prefix('-') {
        Some(word) => (word, true),
        None => (word, false),
    };
    let word = word.strip_suffix('U').unwrap_or(word);
    let lower = word.to_ascii_lowercase();
    let value = if let Some(digits) = ["0x", "0f", "0d"]
        .iter()
        .find_map(|prefix| lower.strip_prefix(prefix))
    {
        u64::from_str_radix(digits, 16).ok()?
    } else {
        lower.parse().ok()?
    };
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        // .entry not_this(
        .version 7.0
        .target sm_52 /* .entry nor_this( */
        .address_size 64
        .file 1 \"a } string\"
        .global .align 4 .b8 table[16];
        .visible .global .u32 counter = 7;
        .extern .global .u32 elsewhere;
        .const .align 2 .u16 few[] = {1, 0x2, -1};
        .visible .entry fill(
            .param .u64 .ptr .global .align 128 fill_param_0,
            .param .u8 fill_param_1,
            .param .align 8 .b8 fill_param_2[24],
            .param .f32 fill_param_3
        )
        .maxntid 128, 1, 1
        {
            .reg .pred %p<2>;
            ld.param.u64 %rd1, [fill_param_0];
            { ld.global.u32 %r1, [%rd1+-4]; }
            ret;
        }
        .func (.param .b32 out) helper(.param .b32 in) { ret; }
        .entry bare { ret; }
        .entry none() { ret; }
    ";

    #[test]
    fn kernels_and_their_parameters_are_found() {
        let ptx = read(TEXT).unwrap();
        let names: Vec<&str> = ptx.entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["fill", "bare", "none"]);
        let places: Vec<(usize, usize)> = ptx.entries[0]
            .parameters
            .iter()
            .map(|parameter| (parameter.offset, parameter.bytes))
            .collect();
        assert_eq!(places, [(0, 8), (8, 1), (16, 24), (40, 4)]);
        assert!(ptx.entries[1].parameters.is_empty());
    }

    #[test]
    fn variables_have_sizes_and_values() {
        let ptx = read(TEXT).unwrap();
        let found: Vec<(&str, usize)> = ptx
            .variables
            .iter()
            .map(|variable| (&*variable.name, variable.bytes))
            .collect();
        assert_eq!(found, [("table", 16), ("counter", 4), ("few", 6)]);
        assert_eq!(ptx.variables[1].initial, [7, 0, 0, 0]);
        assert_eq!(ptx.variables[2].initial, [1, 0, 2, 0, 255, 255]);
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(read(""), Err(Code::INVALID_IMAGE));
        assert_eq!(read("hello"), Err(Code::INVALID_IMAGE));
        for broken in [
            ".version 7.0 .entry a( { }",
            ".version 7.0 .entry a(.param .u64 x { }",
            ".version 7.0 .entry a(.param .align 3 .b8 x[4]) { }",
            ".version 7.0 .entry a(.param .b8 x[]) { }",
            ".version 7.0 .entry a() {",
            ".version 7.0 }",
        ] {
            assert_eq!(read(broken), Err(Code::INVALID_PTX), "{broken}");
        }
    }
}
