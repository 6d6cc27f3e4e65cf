//! The arguments of random calls: handles and addresses of every kind, alive and dead, and places for results.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::stand_in::KernelCall;
use larder_cuda_abi::{
    AccessDesc, AllocationProp, Code, LaunchConfig, Location, PoolProps, StreamHandle,
};

use super::api::{Draw, device, physical, pool_props};
use super::calls::{Any, CALLS};

/// Kinds of arguments, a word each. Handles: `C`ontext, `S`tream, `E`vent, `G`raph, e`X`ec, `P`ool, `M`odule,
/// `F`unction, `H`andle of memory. `A` is any address, `a` one that is not pinned memory, `h` host memory, `r` memory
/// to register, `N` a size, `s` a size that host memory has, `b` a small size, `d` a device, `f` flags, `v` a value,
/// `u` a side of a grid. `R`, `U`, `W` and `V` are starts and whole sizes of allocated ranges. `o` is a place for a
/// result, followed by the kind of the result. The rest are structures.
pub(crate) type Kinds = str;

/// Size of each host buffer in bytes.
const HOST: usize = 256 << 10;

const PTX: &CStr = c".version 7.0
.target sm_52
.address_size 64
.visible .global .align 4 .u32 counter = 7;
.visible .entry chaos(.param .u64 a, .param .u32 b, .param .u32 c) { ret; }
";

const NAMES: [&CStr; 3] = [c"chaos", c"counter", c"nobody"];

/// Returns memory that outlives queued work, because it is never freed.
fn forever(bytes: usize) -> u64 {
    Box::leak(vec![0_u64; bytes / 8].into_boxed_slice())
        .as_mut_ptr()
        .expose_provenance() as u64
}

fn at<T: ?Sized>(of: &mut T) -> u64 {
    std::ptr::from_mut(of).cast::<u8>().expose_provenance() as u64
}

/// The state that all threads of a run share.
#[derive(Default)]
pub(crate) struct Known {
    /// Handles and addresses by kind.
    pub(crate) lists: BTreeMap<char, Vec<u64>>,
    pub(crate) reserved: Vec<(u64, u64)>,
    pub(crate) mapped: Vec<(u64, u64)>,
}

/// The state of one thread.
pub(crate) struct World {
    pub(crate) draw: Draw,
    pub(crate) known: Arc<Mutex<Known>>,
    host: u64,
    register: u64,
    out: Vec<u64>,
    next_out: usize,
    prop: Box<AllocationProp>,
    pool: Box<PoolProps>,
    rights: Box<[AccessDesc; 4]>,
    config: Box<LaunchConfig>,
    parameters: Box<[u64; 3]>,
    pointers: Box<[u64; 8]>,
}

extern "C" fn short(_: *mut c_void) {}

extern "C" fn long(_: *mut c_void) {
    thread::sleep(Duration::from_millis(2));
}

/// The kernel, which uses a number of bytes at an address.
pub(crate) unsafe extern "C" fn body(call: *const KernelCall) {
    let call = unsafe { &*call };
    let parameter = |index: usize| unsafe { *call.parameters.add(index) };
    let at: u64 = unsafe { parameter(0).cast::<u64>().read_unaligned() };
    let bytes: u32 = unsafe { parameter(1).cast::<u32>().read_unaligned() };
    let write: u32 = unsafe { parameter(2).cast::<u32>().read_unaligned() };
    let bytes = bytes % 8192;
    let host = unsafe { (call.access)(call, at, u64::from(bytes), write & 1) };
    if !host.is_null() && write & 1 == 1 && bytes > 0 {
        unsafe { host.cast::<u8>().write_bytes(1, bytes as usize) };
    }
}

impl World {
    pub(crate) fn new(seed: u64, known: &Arc<Mutex<Known>>) -> Self {
        Self {
            draw: Draw::new(seed),
            known: Arc::clone(known),
            host: forever(HOST),
            register: forever(HOST),
            out: vec![0; 16 * 128],
            next_out: 0,
            prop: Box::new(physical(0)),
            pool: Box::new(pool_props(0)),
            rights: Box::new([AccessDesc::default(); 4]),
            config: Box::new(LaunchConfig {
                grid: [1; 3],
                block: [1; 3],
                shared_bytes: 0,
                stream: StreamHandle(0),
                attributes: std::ptr::null_mut(),
                attribute_count: 0,
            }),
            parameters: Box::new([0; 3]),
            pointers: Box::new([0; 8]),
        }
    }

    /// Makes one call. Returns its name and its result.
    pub(crate) fn call(&mut self) -> (&'static str, Code) {
        let (name, function, kinds) = CALLS[self.draw.below(CALLS.len())];
        let mut arguments = [0; 11];
        let mut kept = None;
        for (index, kind) in kinds.split_whitespace().enumerate() {
            arguments[index] = self.argument(kind);
            if let Some(kind) = kind.strip_prefix('o').and_then(|kind| kind.chars().next()) {
                kept = Some((kind, arguments[index]));
            }
        }
        let [a, b, c, d, e, f, g, h, i, j, k] = arguments;
        // SAFETY: all functions take words, ignore surplus ones, and return a code; pointers are null or point to
        // memory of this world.
        let function: Any = unsafe { std::mem::transmute(function) };
        let code = unsafe { function(a, b, c, d, e, f, g, h, i, j, k) };
        // SAFETY: a `Code` has the layout of the result, a 32-bit number, and any number is valid.
        let code: Code = unsafe { std::mem::transmute(code) };
        if code == Code::SUCCESS {
            self.remember(name, kept, &arguments);
        }
        (name, code)
    }

    fn remember(&self, name: &str, kept: Option<(char, u64)>, arguments: &[u64; 11]) {
        let mut known = self.known.lock().unwrap();
        if let Some((kind, at)) = kept.filter(|(_, at)| *at != 0) {
            let place: *const u64 = std::ptr::with_exposed_provenance(at as usize);
            let value = unsafe { *place };
            if name == "cuMemAddressReserve" {
                known.reserved.push((value, arguments[1]));
                known.lists.entry('A').or_default().push(value);
            }
            known.lists.entry(kind).or_default().push(value);
        }
        if name == "cuMemMap" {
            known.mapped.push((arguments[0], arguments[1]));
        }
    }

    /// Returns a place for a result, or null.
    fn room(&mut self) -> u64 {
        if self.draw.rarely(40) {
            return 0;
        }
        self.next_out = (self.next_out + 1) % 16;
        let place = &mut self.out[self.next_out * 128];
        *place = 0;
        std::ptr::from_mut(place).expose_provenance() as u64
    }

    fn handle(&mut self, kind: char) -> u64 {
        let wrong = self.draw.rarely(30);
        let kind = if wrong {
            self.draw
                .one(&['C', 'S', 'E', 'G', 'X', 'P', 'M', 'F', 'H'])
        } else {
            kind
        };
        if self.draw.rarely(60) {
            return self.draw.one(&[0, 1, 2, 3, 16, 17, u64::MAX]);
        }
        if kind == 'S' && self.draw.rarely(4) {
            return self.draw.below(3) as u64;
        }
        self.listed(kind).unwrap_or(0)
    }

    /// Draws a known value. The newest are drawn more often than the oldest, most of which are dead.
    fn listed(&mut self, kind: char) -> Option<u64> {
        let known = self.known.lock().unwrap();
        let list = known.lists.get(&kind)?;
        let back = if self.draw.rarely(4) { list.len() } else { 6 };
        let index = list.len() - 1 - self.draw.below(back.min(list.len()));
        list.get(index).copied()
    }

    fn offset(&mut self) -> u64 {
        self.draw.one(&[
            0,
            0,
            0,
            0,
            0,
            1,
            2,
            4,
            511,
            512,
            4096,
            (2 << 20) - 1,
            2 << 20,
        ])
    }

    fn address(&mut self) -> u64 {
        if self.draw.rarely(40) {
            return self.draw.one(&[0, 1, 4096, u64::MAX, u64::MAX - 4095]);
        }
        let kind = if self.draw.rarely(3) { 'B' } else { 'A' };
        self.listed(kind).unwrap_or(0).wrapping_add(self.offset())
    }

    fn bytes(&mut self) -> u64 {
        if self.draw.rarely(20) {
            return self
                .draw
                .one(&[1 << 47, u64::MAX, u64::MAX - 511, 1 << 63, u64::MAX >> 1]);
        }
        self.draw.one(&[
            0,
            1,
            2,
            3,
            64,
            511,
            512,
            513,
            4096,
            (2 << 20) - 1,
            2 << 20,
            2 << 20,
            2 << 20,
            4 << 20,
        ])
    }

    fn place(&mut self) -> Location {
        if self.draw.rarely(10) {
            return Location {
                kind: self.draw.below(6) as u32,
                id: self.draw.one(&[-1, 0, 1, 2]),
            };
        }
        device(self.draw.below(2) as i32)
    }

    fn argument(&mut self, kind: &str) -> u64 {
        let letter = kind.chars().next().unwrap();
        match letter {
            'o' => self.room(),
            'C' | 'S' | 'E' | 'G' | 'X' | 'P' | 'M' | 'F' | 'H' => self.handle(letter),
            'A' => self.address(),
            'a' if self.draw.rarely(3) => self.host,
            'a' => match self.listed('A') {
                Some(at) => at + self.offset(),
                None => self.host,
            },
            'h' if self.draw.rarely(4) => self.listed('A').unwrap_or(self.host),
            'h' => self.host + self.draw.one(&[0, 1, 8, 4096]),
            'r' => self.register + self.draw.one(&[0, 1, 4096, 65_536]),
            'N' => self.bytes(),
            's' => self.draw.one(&[0, 1, 3, 512, 4096, 65_536]),
            'b' => self.draw.below(64) as u64,
            'l' => self.draw.one(&[0, 0, 0, 1, 3, 2 << 20, 4 << 20, 1 << 63]),
            'd' => self.draw.one(&[0, 0, 0, 1, 1, 2, u64::MAX, 7]),
            'f' => self.draw.one(&[0, 0, 0, 1, 1, 2, 3, 4, 8]),
            'v' => self
                .draw
                .one(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 17, 32, 200, 1024]),
            'u' if self.draw.rarely(30) => self.draw.one(&[0, 2, 65_536]),
            'u' => 1,
            'c' => self.draw.below(4) as u64,
            'R' => self.listed('R').unwrap_or(0) + self.draw.one(&[0, 0, 0, 0, 2 << 20]),
            'V' => self
                .draw
                .one(&[2 << 20, 2 << 20, 2 << 20, 4 << 20, 0, 1, 1 << 63]),
            'U' if self.draw.rarely(2) => self.listed('B').unwrap_or(0),
            'U' | 'W' => self.listed('A').unwrap_or(0),
            _ => self.structure(letter, kind),
        }
    }

    fn structure(&mut self, letter: char, kind: &str) -> u64 {
        match letter {
            'p' => {
                self.prop.location = self.place();
                self.prop.handle_types = self.draw.one(&[0, 0, 0, 0, 1, 8]);
                at(&mut *self.prop)
            }
            'q' => {
                self.pool.location = self.place();
                self.pool.max_bytes = self.draw.one(&[0, 0, 0, 1 << 20]);
                at(&mut *self.pool)
            }
            'w' => {
                for index in 0..4 {
                    self.rights[index] = AccessDesc {
                        location: self.place(),
                        flags: self.draw.one(&[3, 3, 3, 3, 1, 0, 2]),
                    };
                }
                at(&mut *self.rights)
            }
            'L' => {
                self.rights[0].location = self.place();
                at(&mut *self.rights)
            }
            'z' => {
                let place = self.place();
                u64::from(place.kind) | (u64::from(place.id as u32) << 32)
            }
            'j' => {
                self.config.stream = StreamHandle(self.handle('S') as usize);
                self.config.grid[0] = self.draw.below(3) as u32;
                at(&mut *self.config)
            }
            'k' => {
                *self.parameters = [self.address(), self.draw.next(), self.draw.next()];
                let start = at(&mut *self.parameters);
                for index in 0..3 {
                    self.pointers[index] = start + 8 * index as u64;
                }
                at(&mut *self.pointers)
            }
            _ => self.array(letter, kind),
        }
    }

    fn array(&mut self, letter: char, kind: &str) -> u64 {
        match letter {
            'm' | 'i' => {
                let room = self.room();
                if room != 0 {
                    let place: *mut u64 = std::ptr::with_exposed_provenance_mut(room as usize);
                    let value = self.draw.below(4) as u64;
                    unsafe { *place = value };
                }
                room
            }
            'T' => self.draw.one(&NAMES).as_ptr().expose_provenance() as u64,
            't' => PTX.as_ptr().expose_provenance() as u64,
            'y' => {
                let function: super::api::HostFunction =
                    self.draw
                        .one(&[short as super::api::HostFunction, short, long]);
                function as usize as u64
            }
            _ => kind.parse().unwrap(),
        }
    }

    /// Draws a code for a refused call.
    pub(crate) fn refusal(&mut self) -> Code {
        self.draw.one(&[
            Code::OUT_OF_MEMORY,
            Code::INVALID_VALUE,
            Code::INVALID_CONTEXT,
            Code::INVALID_HANDLE,
            Code::NOT_READY,
            Code::NOT_SUPPORTED,
        ])
    }

    pub(crate) fn seen(&self, kind: char) -> Vec<u64> {
        let known = self.known.lock().unwrap();
        known.lists.get(&kind).cloned().unwrap_or_default()
    }
}

const _: () = assert!(size_of::<Code>() == size_of::<u32>() && c::MEM_LOCATION_DEVICE == 1);
