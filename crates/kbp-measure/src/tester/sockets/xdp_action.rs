// SPDX-License-Identifier: Apache-2.0 OR MIT
//! XDP programs that do one thing with our frames below IP (EtherType 0x88B5), count them, and let everything else go
//! on: what other users of XDP do with their traffic, in small.
//!
//! Written as instructions for the reason that [`super::bpf`] has. Not here: the frames ([`super::frame`]).

use std::os::fd::{AsRawFd, OwnedFd};

use super::bpf::{
    counter, create_map, insn, link_to, put, Hook, Insn, ADD_VALUE, BPF_FUNC_REDIRECT_MAP, CALL,
    EXIT, JUMP_IF_ABOVE, JUMP_UNLESS_VALUE, LOAD_MAP, LOAD_U16, LOAD_U32, MAP_FD, MOVE, MOVE_VALUE,
    XDP_PASS,
};
use super::frame::{ETHERNET_LEN, ETHERTYPE};
use super::link;
use crate::error::{Error, Result};

// Types, functions and answers of linux/bpf.h.
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_DEVMAP: u32 = 14;
const BPF_FUNC_MAP_LOOKUP_ELEM: i32 = 1;
const XDP_DROP: i32 = 1;
const XDP_TX: i32 = 3;

const STORE_VALUE_U32: u8 = 0x62; // BPF_ST | BPF_MEM | BPF_W
const STORE_U32: u8 = 0x63; // BPF_STX | BPF_MEM | BPF_W
const STORE_U16: u8 = 0x6b; // BPF_STX | BPF_MEM | BPF_H
const ATOMIC_ADD_U64: u8 = 0xdb; // BPF_STX | BPF_ATOMIC | BPF_DW, BPF_ADD
const JUMP_IF_VALUE: u8 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
/// The register that points behind the stack.
const STACK: u8 = 10;

/// What becomes of our frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// They go on to the stack.
    Pass,
    /// They are dropped.
    Drop,
    /// They go back to whom they came from (`XDP_TX`).
    Return,
    /// They leave by this interface (`XDP_REDIRECT` by a map of devices).
    Redirect(String),
}

/// A program at an interface; it is gone when this is dropped.
#[derive(Debug)]
pub struct Acting {
    _link: OwnedFd,
    _devices: Option<OwnedFd>,
    count: OwnedFd,
}

impl Acting {
    /// How many of our frames it has seen.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn count(&self) -> Result<u64> {
        counter(&self.count).map_err(|e| Error::sys("read the counter of an XDP program", e))
    }
}

/// Puts such a program at an interface.
///
/// # Errors
/// As for [`super::bpf::attach`], and when there is no interface to redirect to.
pub fn act(dev: &str, hook: Hook, action: &Action) -> Result<Acting> {
    let failed = |e| Error::sys("make a map with bpf(2)", e);
    let count = create_map(BPF_MAP_TYPE_ARRAY, 8).map_err(failed)?;
    let devices = match action {
        Action::Redirect(to) => {
            let map = create_map(BPF_MAP_TYPE_DEVMAP, 4).map_err(failed)?;
            let index = link::index(to)?;
            put(&map, index).map_err(|e| Error::sys("put an interface into a map", e))?;
            Some(map)
        }
        _ => None,
    };
    let program = program(action, count.as_raw_fd(), devices.as_ref());
    Ok(Acting {
        _link: link_to(dev, hook, &program)?,
        _devices: devices,
        count,
    })
}

/// A jump whose target, the last two instructions, is entered when it is known.
fn to_the_end(code: u8, target: u8, source: u8, immediate: i32) -> Insn {
    insn(code, target, source, OPEN, immediate)
}

/// Stands for a target that is not known yet.
const OPEN: i16 = i16::MAX;

fn program(action: &Action, count: i32, devices: Option<&OwnedFd>) -> Vec<Insn> {
    let mut all = vec![
        // xdp_md: data at 0, data_end at 4.
        insn(LOAD_U32, 2, 1, 0, 0),
        insn(LOAD_U32, 3, 1, 4, 0),
        insn(MOVE, 4, 2, 0, 0),
        insn(ADD_VALUE, 4, 0, 0, ETHERNET_LEN as i32),
        to_the_end(JUMP_IF_ABOVE, 4, 3, 0),
        insn(LOAD_U16, 4, 2, 12, 0),
        to_the_end(JUMP_UNLESS_VALUE, 4, 0, i32::from(ETHERTYPE.to_be())),
    ];
    if *action == Action::Return {
        all.extend(swap_addresses());
    }
    all.extend([
        insn(STORE_VALUE_U32, STACK, 0, -4, 0),
        insn(LOAD_MAP, 1, MAP_FD, 0, count),
        insn(0, 0, 0, 0, 0),
        insn(MOVE, 2, STACK, 0, 0),
        insn(ADD_VALUE, 2, 0, 0, -4),
        insn(CALL, 0, 0, 0, BPF_FUNC_MAP_LOOKUP_ELEM),
        to_the_end(JUMP_IF_VALUE, 0, 0, 0),
        insn(MOVE_VALUE, 1, 0, 0, 1),
        insn(ATOMIC_ADD_U64, 0, 1, 0, 0),
    ]);
    let answer = |value| insn(MOVE_VALUE, 0, 0, 0, value);
    match (action, devices) {
        (Action::Redirect(_), Some(devices)) => all.extend([
            insn(LOAD_MAP, 1, MAP_FD, 0, devices.as_raw_fd()),
            insn(0, 0, 0, 0, 0),
            // Key 0; without an entry the frame is dropped.
            insn(MOVE_VALUE, 2, 0, 0, 0),
            insn(MOVE_VALUE, 3, 0, 0, 0),
            insn(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        ]),
        (Action::Drop, _) => all.push(answer(XDP_DROP)),
        (Action::Return, _) => all.push(answer(XDP_TX)),
        (Action::Pass | Action::Redirect(_), _) => all.push(answer(XDP_PASS)),
    }
    all.push(insn(EXIT, 0, 0, 0, 0));
    let end = all.len();
    for (at, one) in all.iter_mut().enumerate() {
        if one.offset == OPEN {
            one.offset = (end - at - 1) as i16;
        }
    }
    all.extend([answer(XDP_PASS), insn(EXIT, 0, 0, 0, 0)]);
    all
}

/// The frame's sender becomes its receiver.
fn swap_addresses() -> [Insn; 8] {
    [
        insn(LOAD_U32, 4, 2, 0, 0),
        insn(LOAD_U16, 5, 2, 4, 0),
        insn(LOAD_U32, 7, 2, 6, 0),
        insn(LOAD_U16, 8, 2, 10, 0),
        insn(STORE_U32, 2, 7, 0, 0),
        insn(STORE_U16, 2, 8, 4, 0),
        insn(STORE_U32, 2, 4, 6, 0),
        insn(STORE_U16, 2, 5, 10, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_ends_at_the_answer_that_lets_a_frame_go_on() {
        let redirect = Action::Redirect("veth0".into());
        for action in [Action::Pass, Action::Drop, Action::Return, redirect] {
            let all = program(&action, 3, None);
            let jumps = [JUMP_IF_ABOVE, JUMP_UNLESS_VALUE, JUMP_IF_VALUE];
            let targets: Vec<usize> = all
                .iter()
                .enumerate()
                .filter(|(_, one)| jumps.contains(&one.code))
                .map(|(at, one)| at + 1 + one.offset as usize)
                .collect();
            assert_eq!(targets, [all.len() - 2; 3], "{action:?}");
            assert_eq!(all[all.len() - 3].code, EXIT, "{action:?}");
        }
    }
}
