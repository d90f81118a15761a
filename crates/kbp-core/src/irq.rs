// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which interrupt vector belongs to a receive queue of an interface, and which others it has.
//!
//! The kernel has no table for that, so it is read from the names that drivers give their
//! handlers. The rule, in order:
//!
//! 1. *Candidates* are the vectors that the device owns (`msi_irqs`, or its one line-based
//!    interrupt), and those with a handler that is called after the interface or after its bus
//!    device (`virtio0`).
//! 2. What is left of the name without that owner gives the *role*: a word with `rx` or `input`
//!    receives; one with `tx` or `output` and without `rx` only sends; `comp` of mlx5 receives.
//!    The first number after that word is the queue.
//! 3. A queue's vector is the one that receives and has its number.
//! 4. A device with a single vector, called like the interface, uses it for every queue.
//! 5. Everything else is "no match", with a reason. A wrong interrupt would be worse than none:
//!    drivers that number from 1 (tg3) are not guessed at.
//!
//! Moving an interrupt is not here; that is [`crate::plan`].

use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::netdev::Interface;
use crate::procfs::Interrupts;

/// The interrupt vector of a receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueVector {
    /// Its number.
    pub irq: u32,
    /// Name of the handler that made it match.
    pub name: String,
    /// Whether other queues or the device's housekeeping use it too.
    pub shared: bool,
}

/// The interrupt vectors of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vectors {
    /// Numbers of those of its receive queues.
    pub receive: Vec<u32>,
    /// These, and those for what was sent and for its link, as far as they are in use.
    pub all: Vec<QueueVector>,
}

/// What a handler is for, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It receives for this queue.
    Receive(u32),
    /// It is called exactly like the interface.
    Whole,
    /// It sends, configures, or does not say.
    Other,
}

/// The first number in a text.
fn first_number(text: &str) -> Option<u32> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let digits = &text[start..];
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The part of a handler's name that says what it is for.
///
/// Most drivers write `OWNER-what-N` or, as i40e and ice, `DRIVER-OWNER-what-N`. Without the
/// owner's name in it (an interface that was renamed since) the part behind the first dash is
/// taken.
fn tail<'a>(action: &'a str, owners: &[&str]) -> &'a str {
    for owner in owners {
        if let Some(at) = find_word(action, owner) {
            return &action[at + owner.len()..];
        }
    }
    action.split_once('-').map_or(action, |(_, tail)| tail)
}

/// Where a word stands in a text, not as a part of a longer one: `eth1` is not in `eth10-rx-0`.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}

fn role(action: &str, owners: &[&str]) -> Role {
    if owners.contains(&action) {
        return Role::Whole;
    }
    let tail = tail(action, owners).to_ascii_lowercase();
    // mlx5 says "mlx5_comp3@pci:0000:01:00.0", where the numbers of the address come later.
    let comp = action.strip_prefix("mlx5_comp").and_then(first_number);
    if let Some(queue) = comp {
        return Role::Receive(queue);
    }
    let receives = ["rx", "input"]
        .iter()
        .filter_map(|word| tail.find(word))
        .min();
    match receives.and_then(|at| first_number(&tail[at..])) {
        Some(queue) => Role::Receive(queue),
        None => Role::Other,
    }
}

/// Whether a vector is one of the device's, by number or by the name of a handler.
fn belongs(interface: &Interface, irq: u32, action: &str, owners: &[&str]) -> bool {
    interface.msi_irqs.contains(&irq)
        || owners
            .iter()
            .any(|owner| find_word(action, owner).is_some())
}

/// The vector of a receive queue, by the rule of this module; an error says why there is none.
pub fn queue_vector(
    interrupts: &Interrupts,
    interface: &Interface,
    queue: u32,
) -> Result<QueueVector, Error> {
    let owners = owners(interface);
    let mut whole = Vec::new();
    let mut receiving = Vec::new();
    for vector in candidates(interrupts, interface) {
        match role(&vector.name, &owners) {
            Role::Receive(number) => receiving.push((number, vector)),
            Role::Whole => whole.push(QueueVector {
                shared: true,
                ..vector
            }),
            Role::Other => {}
        }
    }
    choose(interface, queue, receiving, whole)
}

/// The vectors of an interface: of its receive queues, and all other candidates; an error where a receive queue has none
/// by the rule of this module.
pub fn vectors(interrupts: &Interrupts, interface: &Interface) -> Result<Vectors, Error> {
    let mut all: Vec<QueueVector> = Vec::new();
    for queue in 0..interface.rx_queues {
        let vector = queue_vector(interrupts, interface, queue)?;
        if !all.iter().any(|known| known.irq == vector.irq) {
            all.push(vector);
        }
    }
    let receive: Vec<u32> = all.iter().map(|vector| vector.irq).collect();
    for vector in candidates(interrupts, interface) {
        if !all.iter().any(|known| known.irq == vector.irq) {
            all.push(vector);
        }
    }
    Ok(Vectors { receive, all })
}

/// Every handler that is the interface's, with its vector: rule 1 of this module.
fn candidates(interrupts: &Interrupts, interface: &Interface) -> Vec<QueueVector> {
    let owners = owners(interface);
    let mut found = Vec::new();
    for line in &interrupts.lines {
        let Some(irq) = line.irq else { continue };
        for action in &line.actions {
            if belongs(interface, irq, action, &owners) {
                found.push(QueueVector {
                    irq,
                    name: action.clone(),
                    shared: line.actions.len() > 1,
                });
            }
        }
    }
    found
}

/// Who may be named in a handler of the interface: itself, or its bus device.
fn owners(interface: &Interface) -> Vec<&str> {
    let device = interface.device.as_deref();
    std::iter::once(interface.name.as_str())
        .chain(device)
        .collect()
}

fn choose(
    interface: &Interface,
    queue: u32,
    receiving: Vec<(u32, QueueVector)>,
    mut whole: Vec<QueueVector>,
) -> Result<QueueVector, Error> {
    let name = &interface.name;
    if receiving.is_empty() && whole.len() == 1 {
        return Ok(whole.remove(0));
    }
    let known = receiving.iter().map(|(_, vector)| vector).chain(&whole);
    let names: Vec<String> = known.map(|vector| vector.name.clone()).collect();
    let mut matching = receiving
        .into_iter()
        .filter(|(number, _)| *number == queue)
        .map(|(_, vector)| vector);
    let reason = match (matching.next(), matching.next()) {
        (Some(vector), None) => return Ok(vector),
        (Some(a), Some(b)) => {
            format!(
                "two interrupts look like receive queue {queue} of {name}: {} ({}) and {} ({})",
                a.irq, a.name, b.irq, b.name
            )
        }
        (None, _) if names.is_empty() && interface.device.is_none() => {
            format!("{name} is a virtual interface and has no interrupt")
        }
        (None, _) if names.is_empty() => {
            format!("no interrupt of {name} is in use; the interface has to be up")
        }
        (None, _) => format!(
            "none of the interrupts of {name} ({}) names receive queue {queue}",
            names.join(", ")
        ),
    };
    Err(Error::NoVector { reason })
}

impl Host {
    /// The interrupt vectors of an interface: [`vectors`].
    pub fn vectors(&self, interface: &Interface) -> Result<Vectors, Error> {
        vectors(&self.interrupts()?, interface)
    }

    /// The interrupt vector of a receive queue of an interface.
    pub fn queue_vector(&self, interface: &Interface, queue: u32) -> Result<QueueVector, Error> {
        queue_vector(&self.interrupts()?, interface, queue)
    }
}
