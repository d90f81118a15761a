// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages for the family: valid ones, and what becomes of them when they are damaged.
//!
//! Everything follows from the seed. Sending and counting is in the main file.

use kbp_core::uapi::{attr_napi, attr_poller, cmd};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Length of the netlink and the generic netlink header together, bytes.
const HEADERS_LEN: usize = 20;
/// A CPU number that no machine has.
const NO_CPU: u32 = 0x7fff_ffff;
/// An interface number that no namespace has.
const NO_IFINDEX: u32 = 1_000_000;
/// Longest message that is sent, bytes; the kernel takes no more than a socket buffer.
const MESSAGE_LEN_MAX: usize = 60_000;
/// How deep attributes are nested into one another at most.
const NEST_DEPTH_MAX: usize = 40;

/// What the messages may name.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Message type of the family.
    pub family: u16,
    /// Version of the family.
    pub version: u8,
    /// CPUs on which pollers may be created. The first one's poller comes and goes, the others'
    /// stay.
    pub cpus: Vec<u32>,
    /// All online CPUs; pollers are never created on those that are not in `cpus`.
    pub online: Vec<u32>,
    /// Interfaces by name and number.
    pub interfaces: Vec<(String, u32)>,
}

/// A datagram and what is to be done with the answer.
#[derive(Debug)]
pub struct Datagram {
    /// What is sent.
    pub bytes: Vec<u8>,
    /// Leave the answer half read and close the socket.
    pub abandon: bool,
}

/// An attribute that may lie about its length.
#[derive(Clone, Debug)]
struct RawAttr {
    kind: u16,
    value: Vec<u8>,
    length: Option<u16>,
}

impl RawAttr {
    fn new(kind: u16, value: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            value: value.into(),
            length: None,
        }
    }

    fn u32(kind: u16, value: u32) -> Self {
        Self::new(kind, value.to_ne_bytes())
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        let length = self
            .length
            .unwrap_or((self.value.len() + 4).min(0xffff) as u16);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(&self.value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
}

/// A message before it becomes bytes.
#[derive(Clone, Debug)]
struct Draft {
    command: u8,
    version: u8,
    flags: u16,
    attrs: Vec<RawAttr>,
}

/// Makes messages from a seed.
pub struct Generator {
    rng: ChaCha8Rng,
    around: Surroundings,
    admin_only: bool,
}

const ADMIN: &[u8] = &[
    cmd::POLLER_NEW,
    cmd::POLLER_DEL,
    cmd::NAPI_ATTACH,
    cmd::NAPI_DETACH,
];
const READERS: &[u8] = &[cmd::POLLER_GET, cmd::NAPI_GET];

impl Generator {
    /// A generator. With `admin_only` every message asks for something that needs privilege.
    pub fn new(seed: u64, around: Surroundings, admin_only: bool) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            around,
            admin_only,
        }
    }

    /// The next datagram.
    pub fn next(&mut self) -> Datagram {
        if self.admin_only {
            let draft = self.mutated(ADMIN);
            return Datagram {
                bytes: self.emit(&draft),
                abandon: false,
            };
        }
        // Creating and deleting starts and stops threads and waits for RCU: keep that to 1 in 100.
        let mut bytes = match self.rng.random_range(0..1000) {
            0..10 => return self.lifecycle(),
            10..60 => self.random_payload(),
            60..90 => self.several(),
            90..120 => self.wrong_length(),
            120..220 => self.odd_header(),
            220..420 => return self.dump(),
            _ => {
                let commands = if self.rng.random_ratio(2, 3) {
                    ADMIN
                } else {
                    READERS
                };
                let draft = self.mutated(commands);
                self.emit(&draft)
            }
        };
        self.defuse(&mut bytes, false);
        Datagram {
            bytes,
            abandon: false,
        }
    }

    /// A poller or an attachment really comes or goes.
    fn lifecycle(&mut self) -> Datagram {
        let cpu = self.around.cpus.first().copied().unwrap_or(NO_CPU);
        let command = *ADMIN.choose(&mut self.rng).unwrap_or(&cmd::POLLER_NEW);
        let mut draft = self.valid(command);
        for attr in draft
            .attrs
            .iter_mut()
            .filter(|attr| attr.kind == cpu_attr(command))
        {
            attr.value = cpu.to_ne_bytes().to_vec();
        }
        if self.rng.random_ratio(1, 3) {
            self.mutate(&mut draft);
        }
        let mut bytes = self.emit(&draft);
        self.defuse(&mut bytes, true);
        Datagram {
            bytes,
            abandon: false,
        }
    }

    fn dump(&mut self) -> Datagram {
        let commands = if self.rng.random_ratio(4, 5) {
            READERS
        } else {
            ADMIN
        };
        let mut draft = self.mutated(commands);
        draft.flags |= NLM_F_DUMP;
        if self.rng.random_ratio(3, 5) {
            draft.attrs.clear();
        }
        let mut bytes = self.emit(&draft);
        self.defuse(&mut bytes, false);
        Datagram {
            bytes,
            abandon: self.rng.random_ratio(1, 20),
        }
    }

    fn random_payload(&mut self) -> Vec<u8> {
        let command = self.rng.random_range(0..12);
        let length = self.rng.random_range(0..512);
        let mut bytes = self.emit(&Draft {
            command,
            version: 1,
            flags: NLM_F_ACK,
            attrs: Vec::new(),
        });
        bytes.extend((0..length).map(|_| self.rng.random::<u8>()));
        let total = bytes.len() as u32;
        bytes[..4].copy_from_slice(&total.to_ne_bytes());
        bytes
    }

    fn several(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.rng.random_range(2..9) {
            let commands = if self.rng.random() { ADMIN } else { READERS };
            let draft = self.mutated(commands);
            bytes.extend(self.emit(&draft));
            if bytes.len() > MESSAGE_LEN_MAX {
                break;
            }
        }
        bytes
    }

    /// The length in the header, or the end of the datagram, is not where the message ends.
    fn wrong_length(&mut self) -> Vec<u8> {
        let draft = self.mutated(ADMIN);
        let mut bytes = self.emit(&draft);
        if self.rng.random() {
            let length = self.odd_number();
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
        } else {
            let end = self.rng.random_range(0..bytes.len());
            bytes.truncate(end.max(1));
        }
        bytes
    }

    fn odd_header(&mut self) -> Vec<u8> {
        let mut draft = self.mutated(READERS);
        match self.rng.random_range(0..4) {
            0 => draft.command = self.rng.random(),
            1 => draft.version = self.rng.random(),
            2 => draft.flags = self.rng.random::<u16>() & !NLM_F_DUMP,
            _ => {
                draft.command = *[0, cmd::POLLER_NTF, cmd::NAPI_NTF, 9, 255]
                    .choose(&mut self.rng)
                    .unwrap_or(&0)
            }
        }
        let mut bytes = self.emit(&draft);
        // The reserved field of the generic header.
        if self.rng.random_ratio(1, 4) {
            bytes[18] = self.rng.random();
        }
        bytes
    }

    fn mutated(&mut self, commands: &[u8]) -> Draft {
        let command = *commands.choose(&mut self.rng).unwrap_or(&0);
        let mut draft = self.valid(command);
        // A real detach waits for the poller; ten times fewer of them are enough.
        if command == cmd::NAPI_DETACH && self.rng.random_ratio(9, 10) {
            draft.attrs = vec![RawAttr::u32(attr_napi::IFINDEX, NO_IFINDEX)];
        }
        for _ in 0..self.rng.random_range(0..4) {
            self.mutate(&mut draft);
        }
        draft
    }

    /// A message as the spec has it, which may still name things that do not exist.
    fn valid(&mut self, command: u8) -> Draft {
        let attrs = match command {
            cmd::POLLER_NEW => self.poller_attrs(),
            cmd::POLLER_DEL | cmd::POLLER_GET => vec![RawAttr::u32(attr_poller::CPU, self.cpu())],
            cmd::NAPI_ATTACH => {
                let mut attrs = self.napi_attrs();
                attrs.push(RawAttr::u32(attr_napi::CPU, self.cpu()));
                attrs.push(RawAttr::u32(attr_napi::MODE_REQUESTED, 1));
                attrs
            }
            _ => self.napi_attrs(),
        };
        Draft {
            command,
            version: self.around.version,
            flags: NLM_F_ACK,
            attrs,
        }
    }

    fn cpu(&mut self) -> u32 {
        let known = self.around.cpus.choose(&mut self.rng).copied();
        if self.rng.random_ratio(2, 3) {
            known.unwrap_or(NO_CPU)
        } else {
            self.odd_number()
        }
    }

    fn poller_attrs(&mut self) -> Vec<RawAttr> {
        let mut attrs = vec![RawAttr::u32(attr_poller::CPU, self.cpu())];
        let optional = [
            (attr_poller::OWNS, 0..=1),
            (attr_poller::POLICY, 0..=1),
            (attr_poller::PRIORITY, 1..=98),
            (attr_poller::NICE, 0..=19),
            (attr_poller::BUDGET, 1..=64),
            (attr_poller::WATCHDOG_MS, 1..=10_000),
        ];
        for (kind, values) in optional {
            if self.rng.random_ratio(1, 3) {
                attrs.push(RawAttr::u32(kind, self.rng.random_range(values)));
            }
        }
        attrs
    }

    fn napi_attrs(&mut self) -> Vec<RawAttr> {
        let interface = self.around.interfaces.choose(&mut self.rng).cloned();
        let (name, ifindex) = interface.unwrap_or_else(|| ("kbp-none".into(), NO_IFINDEX));
        let queue = if self.rng.random_ratio(3, 4) {
            0
        } else {
            self.odd_number()
        };
        match self.rng.random_range(0..3) {
            0 => vec![
                RawAttr::new(attr_napi::IFNAME, [name.as_bytes(), &[0]].concat()),
                RawAttr::u32(attr_napi::QUEUE, queue),
            ],
            1 => vec![
                RawAttr::u32(attr_napi::IFINDEX, ifindex),
                RawAttr::u32(attr_napi::QUEUE, queue),
            ],
            _ => vec![RawAttr::u32(
                attr_napi::NAPI_ID,
                self.rng.random_range(8_190..8_210),
            )],
        }
    }

    /// Numbers on which checks tend to be off by one.
    fn odd_number(&mut self) -> u32 {
        const ODD: &[u32] = &[
            0,
            1,
            2,
            15,
            16,
            63,
            64,
            65,
            98,
            99,
            255,
            4095,
            8191,
            8192,
            65_535,
            0x7fff_ffff,
            0x8000_0000,
            u32::MAX,
        ];
        if self.rng.random_ratio(3, 4) {
            *ODD.choose(&mut self.rng).unwrap_or(&0)
        } else {
            self.rng.random()
        }
    }

    fn random_attr(&mut self) -> RawAttr {
        let length = *[0, 1, 3, 4, 8, 15, 16, 17, 64, 300]
            .choose(&mut self.rng)
            .unwrap_or(&4);
        let value: Vec<u8> = (0..length).map(|_| self.rng.random()).collect();
        RawAttr::new(self.rng.random_range(0..20), value)
    }

    /// Damage one thing.
    fn mutate(&mut self, draft: &mut Draft) {
        if draft.attrs.is_empty() {
            draft.attrs.push(self.random_attr());
        }
        let at = self.rng.random_range(0..draft.attrs.len());
        match self.rng.random_range(0..10) {
            0 => draft.attrs[at].value = self.odd_number().to_ne_bytes().to_vec(),
            1 => {
                let length = self.rng.random_range(0..40);
                draft.attrs[at].value.resize(length, 0x41);
            }
            2 => draft.attrs[at].kind = self.rng.random_range(0..20),
            3 => {
                draft.attrs[at].kind ^= *[0x8000, 0x4000, 0xc000, 0x3f00]
                    .choose(&mut self.rng)
                    .unwrap_or(&0x8000)
            }
            4 => draft.attrs.push(draft.attrs[at].clone()),
            5 => drop(draft.attrs.remove(at)),
            6 => draft.attrs[at].length = Some(self.odd_number() as u16),
            7 => self.nest(&mut draft.attrs[at]),
            8 => draft.attrs.push(self.random_attr()),
            _ => self.flood(draft),
        }
    }

    fn nest(&mut self, attr: &mut RawAttr) {
        for _ in 0..self.rng.random_range(1..=NEST_DEPTH_MAX) {
            let mut value = Vec::new();
            attr.emit(&mut value);
            *attr = RawAttr::new(attr.kind | 0x8000, value);
        }
    }

    /// Very many attributes; rarely, because it is slow.
    fn flood(&mut self, draft: &mut Draft) {
        let count = if self.rng.random_ratio(1, 20) {
            5_000
        } else {
            50
        };
        let attr = self.random_attr();
        let fitting = count.min(MESSAGE_LEN_MAX / 2 / (attr.value.len() + 8));
        draft.attrs.extend(std::iter::repeat_n(attr, fitting));
    }

    fn emit(&mut self, draft: &Draft) -> Vec<u8> {
        let mut bytes = vec![0; HEADERS_LEN];
        for attr in &draft.attrs {
            attr.emit(&mut bytes);
        }
        bytes.truncate(MESSAGE_LEN_MAX);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.around.family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(draft.flags | NLM_F_REQUEST).to_ne_bytes());
        let sequence: u32 = self.rng.random();
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes[16] = draft.command;
        bytes[17] = draft.version;
        bytes
    }

    /// Take the CPUs that are not ours out of every request that would create or delete a poller.
    /// The first poller comes and goes in `lifecycle` messages only, the others stay.
    fn defuse(&self, datagram: &mut [u8], lifecycle: bool) {
        let (ours, online) = (&self.around.cpus, &self.around.online);
        let changing = |cpu: u32| ours.first() == Some(&cpu);
        let forbidden = |command: u8, cpu: u32| match ours.contains(&cpu) {
            false => online.contains(&cpu),
            true if changing(cpu) => !lifecycle,
            true => command == cmd::POLLER_DEL,
        };
        let mut start = 0;
        while let Some(header) = datagram.get(start..start + HEADERS_LEN) {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let command = header[16];
            let end = start.saturating_add(length).min(datagram.len());
            if command == cmd::POLLER_NEW || command == cmd::POLLER_DEL {
                if let Some(attrs) = datagram.get_mut(start + HEADERS_LEN..end) {
                    replace_cpus(attrs, |cpu| forbidden(command, cpu));
                }
            }
            start = start.saturating_add(length.max(16).next_multiple_of(4));
        }
    }
}

fn cpu_attr(command: u8) -> u16 {
    match command {
        cmd::NAPI_ATTACH | cmd::NAPI_DETACH | cmd::NAPI_GET => attr_napi::CPU,
        _ => attr_poller::CPU,
    }
}

/// Go through attributes as the kernel does and replace the CPUs that may not be named.
fn replace_cpus(attrs: &mut [u8], forbidden: impl Fn(u32) -> bool) {
    let mut at = 0;
    while let Some(header) = attrs.get(at..at + 4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        if let (attr_poller::CPU, Some(value)) = (kind, attrs.get_mut(at + 4..at + 8)) {
            if forbidden(u32::from_ne_bytes([value[0], value[1], value[2], value[3]])) {
                value.copy_from_slice(&NO_CPU.to_ne_bytes());
            }
        }
        if length < 4 {
            break;
        }
        at += length.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kbp_core::attr::Attrs;

    fn around() -> Surroundings {
        Surroundings {
            family: 30,
            version: 1,
            cpus: vec![2, 3],
            online: vec![0, 1, 2, 3],
            interfaces: vec![("eth0".into(), 2)],
        }
    }

    /// Every CPU that a request to create or delete a poller names, with the command, read the slow
    /// way.
    fn poller_cpus(datagram: &[u8]) -> Vec<(u8, u32)> {
        let mut cpus = Vec::new();
        let mut rest = datagram;
        while rest.len() >= HEADERS_LEN {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            if length < HEADERS_LEN || length > rest.len() {
                break;
            }
            if matches!(rest[16], cmd::POLLER_NEW | cmd::POLLER_DEL) {
                let attrs = Attrs::parse(&rest[HEADERS_LEN..length]).unwrap_or_default();
                let cpu = attrs.optional_u32(attr_poller::CPU).ok().flatten();
                cpus.extend(cpu.map(|cpu| (rest[16], cpu)));
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        cpus
    }

    #[test]
    fn pollers_are_named_on_the_given_cpus_only() {
        let seed = 7;
        let mut generator = Generator::new(seed, around(), false);
        let mut changes = 0;
        for number in 0..20_000 {
            let cpus = poller_cpus(&generator.next().bytes);
            let wrong = |(command, cpu): &(u8, u32)| {
                matches!((*command, *cpu), (_, 0 | 1) | (cmd::POLLER_DEL, 3))
            };
            assert!(
                !cpus.iter().any(wrong),
                "seed {seed}, message {number}: {cpus:?}"
            );
            changes += cpus.iter().filter(|(_, cpu)| *cpu == 2).count();
        }
        // About one message in 200: half of those that concern attachments instead.
        assert!(
            (50..200).contains(&changes),
            "seed {seed}: the first poller was named {changes} times"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_messages() {
        let messages = |seed| {
            let mut generator = Generator::new(seed, around(), true);
            (0..100).map(|_| generator.next().bytes).collect::<Vec<_>>()
        };
        assert_eq!(messages(3), messages(3));
        assert_ne!(messages(3), messages(4));
    }

    #[test]
    fn without_privilege_only_privileged_things_are_asked_for() {
        let mut generator = Generator::new(1, around(), true);
        for _ in 0..1000 {
            assert!(ADMIN.contains(&generator.next().bytes[16]));
        }
    }
}
