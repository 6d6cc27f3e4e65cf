//! Two processes share one block. The second process is this test program again, running [`second_process`]; its
//! standard input is a socket.

use std::io::{IoSlice, Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use larder_cuda::{Context, ImportedBlock, SharedLayout};

use super::{setup, shareable};
use crate::common::{DEVICE_BYTES, MIB, alone, assert_clean, assert_filled, driver, fill};

fn send(socket: &UnixStream, bytes: &[u8], descriptors: &[OwnedFd]) {
    let numbers: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let room = size_of_val(numbers.as_slice()) as u32;
    let mut control = vec![0_u64; 64];
    let mut part = IoSlice::new(bytes);
    // SAFETY: all zero is an empty header.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = (&raw mut part).cast();
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the macro only calculates.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(room) } as usize;
    // SAFETY: the header points to room for a control message.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: the control message is in that room, which nothing else uses.
    let first = unsafe { &mut *first };
    first.cmsg_level = libc::SOL_SOCKET;
    first.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: the macro only calculates.
    first.cmsg_len = unsafe { libc::CMSG_LEN(room) } as usize;
    // SAFETY: the control message has room for that many descriptors.
    let data = unsafe { libc::CMSG_DATA(first) }.cast::<i32>();
    // SAFETY: the control message has room for that many descriptors.
    unsafe { data.copy_from_nonoverlapping(numbers.as_ptr(), numbers.len()) };
    // SAFETY: the header and everything that it points to outlive the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
    assert_eq!(usize::try_from(sent), Ok(bytes.len()));
}

fn receive(socket: &UnixStream) -> (Vec<u8>, Vec<OwnedFd>) {
    let (mut bytes, mut control) = (vec![0_u8; 4096], vec![0_u64; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all zero is an empty header.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(control.as_slice());
    let flags = libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header and everything that it points to outlive the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    bytes.truncate(usize::try_from(got).expect("a message"));
    // SAFETY: the kernel has filled in the header.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: null, or a control message that the kernel has written.
    let first = unsafe { first.as_ref() }.expect("descriptors");
    // SAFETY: the macro only calculates.
    let count = (first.cmsg_len - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<i32>();
    // SAFETY: the control message holds that many descriptors.
    let data = unsafe { libc::CMSG_DATA(first) }.cast::<i32>();
    let owned = |index| {
        // SAFETY: one of the descriptors in the control message.
        let at = unsafe { data.add(index) };
        // SAFETY: one of the descriptors in the control message.
        let number = unsafe { at.read_unaligned() };
        // SAFETY: the kernel has just created the descriptor for this process.
        unsafe { OwnedFd::from_raw_fd(number) }
    };
    (bytes, (0..count).map(owned).collect())
}

const ROLE: &str = "LARDER_TEST_SHARING";

/// A second process, which is killed on drop, and the file in which both processes count memory.
struct Second {
    child: Child,
    socket: UnixStream,
    counted: PathBuf,
}

impl Second {
    fn start(role: &str) -> Self {
        let counted = env::temp_dir().join(format!("larder-sharing-{}", std::process::id()));
        let _ = fs::remove_file(&counted);
        let (socket, other) = UnixStream::pair().unwrap();
        let control = driver().stand_in().unwrap();
        control.share(&counted).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "sharing::processes::second_process",
                "--nocapture",
            ])
            .env(ROLE, role)
            .env("LARDER_STAND_IN_SHARED", &counted)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            socket,
            counted,
        }
    }

    /// Waits until the second process has done its part.
    fn wait(&mut self) {
        let mut word = [0];
        self.socket.read_exact(&mut word).expect("the other lives");
    }

    fn go_on(&mut self) {
        self.socket.write_all(&[1]).unwrap();
    }

    fn finish(mut self) {
        self.go_on();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.counted);
    }
}

/// Does nothing unless another test started this process.
#[test]
fn second_process() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    // SAFETY: standard input is a socket to the other process.
    let input = unsafe { BorrowedFd::borrow_raw(0) };
    let mut socket = UnixStream::from(input.try_clone_to_owned().unwrap());
    let (layout, descriptors) = receive(&socket);
    let layout = SharedLayout::from_bytes(&layout).unwrap();
    let control = driver().stand_in().unwrap();
    if let Ok(seed) = role.parse() {
        control.schedule_deferred(seed);
    }
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let block = ImportedBlock::new(&context, &layout, &descriptors).unwrap();
    drop(descriptors);
    assert_eq!(control.used(0), 0, "the exporter counts it");
    for mib in 0..block.bytes() / MIB {
        let part = block.part(mib * MIB, MIB).unwrap();
        let at = part.start().get();
        assert_filled(&stream, at, MIB, mib as u8);
        fill(&stream, at, MIB / 2, 100 + mib as u8);
    }
    stream.synchronize().unwrap();
    socket.write_all(&[1]).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    // The exporter has written in the meantime.
    assert_filled(&stream, block.range().start().get(), block.bytes(), 77);
    match role.as_str() {
        "dropped" => drop(block),
        _ => block.free().unwrap(),
    }
    assert_eq!(context.refused_frees(), 0);
    assert_eq!(control.findings(), Vec::<String>::new());
}

#[test]
fn two_processes_read_and_write_one_block() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for role in ["eager", "dropped", "1", "2", "3"] {
        let mut second = Second::start(role);
        let context = Context::new(0).unwrap();
        {
            let (memory, stream) = setup(&context, shareable());
            if let Ok(seed) = role.parse() {
                control.schedule_deferred(seed);
            }
            // The block spans several handles and starts inside one of them.
            let before = memory.alloc(&stream, 3 * MIB).unwrap();
            let (small, bytes) = (memory.alloc(&stream, 512).unwrap(), 9 * MIB);
            let block = memory.alloc(&stream, bytes).unwrap();
            memory.free(&stream, before).unwrap();
            let at = block.addr().get();
            fill(&stream, small.addr().get(), 512, 55);
            for mib in 0..9 {
                fill(&stream, at + mib * MIB, MIB, mib as u8);
            }
            let exported = memory.export(&block).unwrap();
            stream.synchronize().unwrap();
            let held = control.used(0);
            let layout = exported.layout().to_bytes();
            send(&second.socket, &layout, exported.descriptors());
            second.wait();
            for mib in 0..9 {
                assert_filled(&stream, at + mib * MIB, MIB / 2, 100 + mib as u8);
                assert_filled(&stream, at + mib * MIB + MIB / 2, MIB / 2, mib as u8);
            }
            let (free, total) = context.try_current(|driver| driver.memory_info()).unwrap();
            assert_eq!(
                (control.used(0), total - free),
                (held, held),
                "counted once"
            );
            fill(&stream, at, bytes, 77);
            stream.synchronize().unwrap();
            second.finish();
            assert_filled(&stream, small.addr().get(), 512, 55);
            drop(exported);
            memory.free(&stream, block).unwrap();
            control.schedule_eagerly();
        }
        drop(context);
        assert_clean(control);
        control.reset(2, DEVICE_BYTES);
    }
}
