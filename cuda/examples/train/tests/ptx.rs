//! Runs the text of the kernels, thread by thread, in an interpreter of the instructions that it uses, and
//! compares with the driver's results: the stand-in does not read the text, and there is not always a GPU.

use std::collections::HashMap;

use larder_cuda::DeviceBuffer;

use super::common::together;
use super::gpu;
use crate::data::Random;
use crate::gpu::{Matrix, TrainDevice};

const TEXT: &str = include_str!("../kernels.ptx");

/// Number of addresses for an argument's memory, more than it has.
const ROOM: u64 = 1 << 32;

/// Threads of a block: not a power of two, and more than are needed.
const BLOCK: u32 = 48;

/// Maximum difference: the two sum and round in ways of their own.
const NEAR: f32 = 1e-4;

/// An argument: memory, or a number as its bits.
enum Arg {
    Memory(Vec<f32>),
    Count(usize),
    Number(f32),
}

/// A kernel's parameters and lines.
struct Kernel {
    parameters: Vec<String>,
    lines: Vec<String>,
    labels: HashMap<String, usize>,
}

impl Kernel {
    fn of(name: &str) -> Self {
        let (_, text) = TEXT.split_once(&format!(".entry {name}(")).unwrap();
        let (parameters, text) = text.split_once(')').unwrap();
        let (body, _) = text.split_once("\n}").unwrap();
        let name_of = |line: &str| line.split_whitespace().last().unwrap().to_owned();
        let (mut lines, mut labels) = (Vec::new(), HashMap::new());
        for line in body.lines().map(str::trim) {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), lines.len());
            } else if line.ends_with(';') && !line.starts_with('.') {
                lines.push(line.trim_end_matches(';').to_owned());
            }
        }
        Self {
            parameters: parameters.split(',').map(name_of).collect(),
            lines,
            labels,
        }
    }

    /// Runs the whole grid.
    fn run(&self, args: &mut [Arg], threads: usize) {
        assert_eq!(args.len(), self.parameters.len());
        // One block more than is needed, whose threads must do nothing.
        for block in 0..(threads as u32).div_ceil(BLOCK) + 1 {
            for thread in 0..BLOCK {
                self.thread(args, block, thread);
            }
        }
    }

    fn thread(&self, args: &mut [Arg], block: u32, thread: u32) {
        let mut registers = HashMap::from([
            ("%ctaid.x".to_owned(), u64::from(block)),
            ("%ntid.x".to_owned(), u64::from(BLOCK)),
            ("%tid.x".to_owned(), u64::from(thread)),
        ]);
        let mut at = 0;
        loop {
            let mut words = self.lines[at]
                .split([' ', ','])
                .filter(|word| !word.is_empty());
            let mut op = words.next().unwrap();
            let mut taken = true;
            if let Some(predicate) = op.strip_prefix('@') {
                taken = registers[predicate] != 0;
                op = words.next().unwrap();
            }
            let words: Vec<_> = words.collect();
            at += 1;
            match op {
                "ret" => return,
                "bra" if taken => at = self.labels[words[0]],
                "bra" => {}
                "st.global.f32" => {
                    *place(args, &registers, words[0]) = number(&registers, words[1]);
                }
                _ => {
                    let value = self.value(args, &registers, op, &words[1..]);
                    registers.insert(words[0].to_owned(), value);
                }
            }
        }
    }

    /// Returns the value that an instruction puts into its first register.
    fn value(
        &self,
        args: &mut [Arg],
        from: &HashMap<String, u64>,
        op: &str,
        words: &[&str],
    ) -> u64 {
        let int = |index: usize| match words[index].parse() {
            Ok(value) => value,
            Err(_) => from[words[index]],
        };
        let word = |index| int(index) as u32;
        let f = |index: usize| number(from, words[index]);
        let float = match op {
            "ld.param.u32" | "ld.param.u64" | "ld.param.f32" => {
                return self.parameter(args, op, words[0]);
            }
            "cvta.to.global.u64" | "mov.u32" => return int(0),
            "mad.lo.u32" => return u64::from(word(0).wrapping_mul(word(1)).wrapping_add(word(2))),
            "mul.lo.u32" => return u64::from(word(0).wrapping_mul(word(1))),
            "mul.wide.u32" => return u64::from(word(0)) * u64::from(word(1)),
            "add.u32" => return u64::from(word(0).wrapping_add(word(1))),
            "add.s64" => return int(0).wrapping_add(int(1)),
            "div.u32" => return u64::from(word(0) / word(1)),
            "rem.u32" => return u64::from(word(0) % word(1)),
            "setp.ge.u32" => return u64::from(word(0) >= word(1)),
            "setp.ge.f32" => return u64::from(f(0) >= f(1)),
            "selp.f32" => f(if int(2) != 0 { 0 } else { 1 }),
            "ld.global.f32" => *place(args, from, words[0]),
            "mov.f32" => f(0),
            "neg.f32" => -f(0),
            "abs.f32" => f(0).abs(),
            "max.f32" => f(0).max(f(1)),
            "add.rn.f32" => f(0) + f(1),
            "sub.rn.f32" => f(0) - f(1),
            "mul.rn.f32" => f(0) * f(1),
            "div.rn.f32" => f(0) / f(1),
            "fma.rn.f32" => f(0).mul_add(f(1), f(2)),
            "ex2.approx.f32" => f(0).exp2(),
            "lg2.approx.f32" => f(0).log2(),
            "cvt.rn.f32.u32" => word(0) as f32,
            other => panic!("no such instruction here: {other}"),
        };
        u64::from(float.to_bits())
    }

    fn parameter(&self, args: &[Arg], op: &str, word: &str) -> u64 {
        let name = word.trim_matches(['[', ']']);
        let index = self
            .parameters
            .iter()
            .position(|known| known == name)
            .unwrap();
        match (&args[index], op) {
            (Arg::Memory(_), "ld.param.u64") => (index as u64 + 1) * ROOM,
            (Arg::Count(count), "ld.param.u32") => *count as u64,
            (Arg::Number(number), "ld.param.f32") => u64::from(number.to_bits()),
            _ => panic!("{name} is not of that type"),
        }
    }
}

/// Returns a number from a register, or from a literal.
fn number(registers: &HashMap<String, u64>, word: &str) -> f32 {
    let bits = match word.strip_prefix("0f") {
        Some(bits) => u32::from_str_radix(bits, 16).unwrap(),
        None => registers[word] as u32,
    };
    f32::from_bits(bits)
}

/// Returns the memory at an address, which must exist.
fn place<'a>(args: &'a mut [Arg], registers: &HashMap<String, u64>, word: &str) -> &'a mut f32 {
    let at = registers[word.trim_matches(['[', ']'])];
    let (index, offset) = ((at / ROOM) as usize - 1, at % ROOM);
    assert_eq!(offset % 4, 0);
    match &mut args[index] {
        Arg::Memory(values) => &mut values[offset as usize / 4],
        _ => panic!("no memory at {at:#x}"),
    }
}

/// Returns the memory of an argument.
fn memory(args: &[Arg], index: usize) -> &[f32] {
    match &args[index] {
        Arg::Memory(values) => values,
        _ => panic!("argument {index} is no memory"),
    }
}

#[track_caller]
fn assert_near(text: &[f32], buffer: &DeviceBuffer<f32>, gpu: &TrainDevice) {
    let driver = gpu.compute.clone_dtoh(buffer).unwrap();
    assert_eq!(text.len(), driver.len());
    for (index, (text, driver)) in text.iter().zip(driver).enumerate() {
        let near = (text - driver).abs() < NEAR;
        assert!(near, "value {index}: {text}, and {driver} of the driver");
    }
}

/// Values from -4 to 4, on the host and, equal to them, on the device.
struct Pair(Vec<f32>, DeviceBuffer<f32>);

impl Pair {
    fn draw(gpu: &TrainDevice, random: &mut Random, len: usize) -> Self {
        let values: Vec<_> = (0..len).map(|_| 4.0 * random.signed()).collect();
        let buffer = gpu.memory.upload(&gpu.compute, &values).unwrap();
        Self(values, buffer)
    }

    fn arg(&self) -> Arg {
        Arg::Memory(self.0.clone())
    }

    fn matrix(&self, rows: usize, cols: usize, transposed: bool) -> Matrix<'_> {
        let view = self.1.as_view();
        if transposed {
            Matrix::new(view, rows).unwrap().transposed()
        } else {
            Matrix::new(view, cols).unwrap()
        }
    }
}

/// Returns memory that a kernel must write entirely.
fn unwritten(len: usize) -> Arg {
    Arg::Memory(vec![f32::NAN; len])
}

#[test]
fn products_are_as_the_text_says_also_of_transposed_matrices() {
    let _turn = together();
    let (gpu, mut random) = (gpu(), Random::new(1));
    let [rows, cols, depth] = [7, 5, 9];
    let left = Pair::draw(&gpu, &mut random, rows * depth);
    let right = Pair::draw(&gpu, &mut random, depth * cols);
    let strides = |rows, cols, turned| if turned { [1, rows] } else { [cols, 1] };
    for (turn_left, turn_right) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut args = vec![unwritten(rows * cols), left.arg(), right.arg()];
        args.extend([rows, cols, depth].map(Arg::Count));
        args.extend(strides(rows, depth, turn_left).map(Arg::Count));
        args.extend(strides(depth, cols, turn_right).map(Arg::Count));
        Kernel::of("matmul").run(&mut args, rows * cols);

        let left = left.matrix(rows, depth, turn_left);
        let right = right.matrix(depth, cols, turn_right);
        let out = gpu.matmul(left, right).unwrap();
        assert_near(memory(&args, 0), &out, &gpu);
    }
}

#[test]
fn a_layer_is_as_the_text_says() {
    let _turn = together();
    let (gpu, mut random) = (gpu(), Random::new(2));
    let (rows, cols) = (11, 6);
    let mut values = Pair::draw(&gpu, &mut random, rows * cols);
    let bias = Pair::draw(&gpu, &mut random, cols);
    let sizes = [rows * cols, cols].map(Arg::Count);
    let mut args: Vec<_> = [values.arg(), bias.arg()]
        .into_iter()
        .chain(sizes)
        .collect();
    Kernel::of("bias_tanh").run(&mut args, rows * cols);
    gpu.bias_tanh(&mut values.1, bias.1.as_view()).unwrap();
    assert_near(memory(&args, 0), &values.1, &gpu);

    let mut delta = Pair::draw(&gpu, &mut random, rows * cols);
    let mut args = vec![delta.arg(), args.swap_remove(0), Arg::Count(rows * cols)];
    Kernel::of("tanh_back").run(&mut args, rows * cols);
    gpu.tanh_back(&mut delta.1, &values.1).unwrap();
    assert_near(memory(&args, 0), &delta.1, &gpu);
}

#[test]
fn the_loss_is_as_the_text_says() {
    let _turn = together();
    let (gpu, mut random) = (gpu(), Random::new(3));
    let count = 53;
    let logits = Pair::draw(&gpu, &mut random, count);
    let bias = Pair::draw(&gpu, &mut random, 1);
    let labels = Pair::draw(&gpu, &mut random, count);
    let mut args = vec![unwritten(count), unwritten(count)];
    args.extend([logits.arg(), bias.arg(), labels.arg(), Arg::Count(count)]);
    Kernel::of("logistic_loss").run(&mut args, count);
    let (bias, labels) = (bias.1.as_view(), labels.1.as_view());
    let (losses, delta) = gpu.logistic_loss(&logits.1, bias, labels).unwrap();
    assert_near(memory(&args, 0), &losses, &gpu);
    assert_near(memory(&args, 1), &delta, &gpu);
}

#[test]
fn sums_and_descents_are_as_the_text_says() {
    let _turn = together();
    let (gpu, mut random) = (gpu(), Random::new(4));
    let (rows, cols) = (13, 50);
    let values = Pair::draw(&gpu, &mut random, rows * cols);
    let mut args = vec![unwritten(cols), values.arg()];
    args.extend([rows, cols].map(Arg::Count));
    Kernel::of("sum_rows").run(&mut args, cols);
    let sums = gpu.sum_rows(values.matrix(rows, cols, false)).unwrap();
    assert_near(memory(&args, 0), &sums, &gpu);

    let mut weights = Pair::draw(&gpu, &mut random, cols);
    let rate = 0.25;
    let mut args = vec![weights.arg(), args.swap_remove(0)];
    args.extend([Arg::Count(cols), Arg::Number(rate)]);
    Kernel::of("descend").run(&mut args, cols);
    gpu.descend(weights.1.as_view_mut(), &sums, rate).unwrap();
    assert_near(memory(&args, 0), &weights.1, &gpu);
}
