// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The XDP program of the AF_XDP receiver: frames of our EtherType go to the socket of their
//! queue, everything else goes on. And one that lets everything go on ([`attach_pass`]).
//!
//! It is 14 instructions long, so it is written here and loaded with bpf(2); a compiler and
//! a loader library would be the larger part. It is attached by a BPF link, which the kernel
//! takes away with the descriptor: also when this process is killed.
//!
//! Not here: the socket ([`super::xdp`]), and programs that do something else with our frames ([`super::xdp_action`]).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::frame::{ETHERNET_LEN, ETHERTYPE};
use super::link;
use crate::error::{Error, Result};

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// In the stack, on a socket buffer: every interface has it.
    Generic,
    /// In the driver.
    Native,
}

impl Hook {
    /// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
    fn flags(self) -> u32 {
        match self {
            Self::Generic => 1 << 1,
            Self::Native => 1 << 2,
        }
    }

    fn refusal(self, dev: &str, error: io::Error) -> Error {
        match (self, error.raw_os_error()) {
            (_, Some(libc::EBUSY)) => Error::Invalid(format!(
                "{dev} has an XDP program of somebody else: take it off with \
                 `ip link set {dev} xdp off` if it may go"
            )),
            (Self::Native, Some(libc::EOPNOTSUPP)) => Error::Invalid(format!(
                "the driver of {dev} has no XDP hook: use xdp-generic"
            )),
            (_, _) => Error::sys(format!("attach an XDP program to {dev} ({self:?})"), error),
        }
    }
}

// Commands, types and functions of linux/bpf.h.
const BPF_MAP_CREATE: i64 = 0;
pub(super) const BPF_MAP_LOOKUP_ELEM: i64 = 1;
const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_PROG_LOAD: i64 = 5;
const BPF_LINK_CREATE: i64 = 28;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
pub(super) const BPF_FUNC_REDIRECT_MAP: i32 = 51;
pub(super) const XDP_PASS: i32 = 2;

/// The program at an interface; it is gone when this is dropped.
#[derive(Debug)]
pub struct Attached {
    _link: OwnedFd,
    _map: Option<OwnedFd>,
}

/// Puts the program at an interface and `socket` into its map, for queue 0.
///
/// # Errors
/// When the kernel has no BPF, the driver has no such hook, or another program is there.
pub fn attach(dev: &str, hook: Hook, socket: &OwnedFd) -> Result<Attached> {
    let failed = |what: &'static str| move |e| Error::sys(what, e);
    let map = create_map(BPF_MAP_TYPE_XSKMAP, 4)
        .map_err(failed("make a map of AF_XDP sockets with bpf(2)"))?;
    put(&map, socket.as_raw_fd() as u32).map_err(failed("put the AF_XDP socket into its map"))?;
    Ok(Attached {
        _link: link_to(dev, hook, &program(&map))?,
        _map: Some(map),
    })
}

/// Puts a program at an interface that lets every frame go on.
///
/// # Errors
/// As for [`attach`].
pub fn attach_pass(dev: &str, hook: Hook) -> Result<Attached> {
    let pass = [insn(MOVE_VALUE, 0, 0, 0, XDP_PASS), insn(EXIT, 0, 0, 0, 0)];
    Ok(Attached {
        _link: link_to(dev, hook, &pass)?,
        _map: None,
    })
}

pub(super) fn link_to(dev: &str, hook: Hook, program: &[Insn]) -> Result<OwnedFd> {
    let program = load(program).map_err(|e| Error::sys("load the XDP program with bpf(2)", e))?;
    let attribute = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: link::index(dev)?,
        attach_type: BPF_XDP,
        flags: hook.flags(),
    };
    bpf_fd(BPF_LINK_CREATE, &attribute).map_err(|e| hook.refusal(dev, e))
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// A map with one entry, whose key is 0.
pub(super) fn create_map(map_type: u32, value_size: u32) -> io::Result<OwnedFd> {
    let attribute = MapCreate {
        map_type,
        key_size: 4,
        value_size,
        max_entries: 1,
    };
    bpf_fd(BPF_MAP_CREATE, &attribute)
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Puts a descriptor or a number of an interface into a map of [`create_map`].
pub(super) fn put(map: &OwnedFd, value: u32) -> io::Result<()> {
    let key = 0u32;
    let attribute = MapElement {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_ref(&value) as u64,
        flags: 0,
    };
    bpf(BPF_MAP_UPDATE_ELEM, &attribute).map(drop)
}

/// Reads the counter of a map of [`create_map`] with values of eight bytes.
pub(super) fn counter(map: &OwnedFd) -> io::Result<u64> {
    let (key, mut value) = (0u32, 0u64);
    let attribute = MapElement {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: std::ptr::from_ref(&key) as u64,
        value: std::ptr::from_mut(&mut value) as u64,
        flags: 0,
    };
    bpf(BPF_MAP_LOOKUP_ELEM, &attribute)?;
    Ok(value)
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

fn load(program: &[Insn]) -> io::Result<OwnedFd> {
    let attribute = ProgLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"kbp_to_socket\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: BPF_XDP,
    };
    bpf_fd(BPF_PROG_LOAD, &attribute)
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: i64, attribute: &T) -> io::Result<i64> {
    let len = size_of::<T>();
    // SAFETY: the kernel reads `len` bytes of the attribute; what the addresses in it point to
    // lives in the caller until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attribute), len) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

fn bpf_fd<T>(command: i64, attribute: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: these commands answer with a new descriptor, which belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// One instruction of BPF, as the kernel reads it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Insn {
    pub(super) code: u8,
    registers: u8,
    pub(super) offset: i16,
    immediate: i32,
}

pub(super) fn insn(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> Insn {
    Insn {
        code,
        registers: source << 4 | target,
        offset,
        immediate,
    }
}

// Instruction codes: class, size or operation, and source, as linux/bpf.h composes them.
pub(super) const LOAD_U32: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
pub(super) const LOAD_U16: u8 = 0x69; // BPF_LDX | BPF_MEM | BPF_H
pub(super) const LOAD_MAP: u8 = 0x18; // BPF_LD | BPF_DW | BPF_IMM, two slots
pub(super) const MOVE: u8 = 0xbf; // BPF_ALU64 | BPF_MOV | BPF_X
pub(super) const MOVE_VALUE: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
pub(super) const ADD_VALUE: u8 = 0x07; // BPF_ALU64 | BPF_ADD | BPF_K
pub(super) const JUMP_IF_ABOVE: u8 = 0x2d; // BPF_JMP | BPF_JGT | BPF_X
pub(super) const JUMP_UNLESS_VALUE: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K
pub(super) const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;
/// `BPF_PSEUDO_MAP_FD`: the constant is the descriptor of a map.
pub(super) const MAP_FD: u8 = 1;

fn program(map: &OwnedFd) -> [Insn; 15] {
    let ethertype = i32::from(ETHERTYPE.to_be());
    [
        // xdp_md: data at 0, data_end at 4, rx_queue_index at 16.
        insn(LOAD_U32, 2, 1, 0, 0),
        insn(LOAD_U32, 3, 1, 4, 0),
        insn(MOVE, 4, 2, 0, 0),
        insn(ADD_VALUE, 4, 0, 0, ETHERNET_LEN as i32),
        insn(JUMP_IF_ABOVE, 4, 3, 8, 0),
        insn(LOAD_U16, 4, 2, 12, 0),
        insn(JUMP_UNLESS_VALUE, 4, 0, 6, ethertype),
        insn(LOAD_U32, 2, 1, 16, 0),
        insn(LOAD_MAP, 1, MAP_FD, 0, map.as_raw_fd()),
        insn(0, 0, 0, 0, 0),
        // What has no socket goes on.
        insn(MOVE_VALUE, 3, 0, 0, XDP_PASS),
        insn(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        insn(EXIT, 0, 0, 0, 0),
        insn(MOVE_VALUE, 0, 0, 0, XDP_PASS),
        insn(EXIT, 0, 0, 0, 0),
    ]
}
