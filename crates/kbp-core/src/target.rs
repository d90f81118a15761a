// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a person names (`eth0`, `eth0:1`, a NAPI id) and which attached instance that is.
//!
//! Pure comparison; asking the kernel is in [`crate::plan`].

use crate::model::{Napi, NapiRef};

/// What is to be attached or detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An interface; without a queue, all of its receive queues.
    Interface {
        /// Name.
        name: String,
        /// Receive queue, from 0.
        queue: Option<u32>,
    },
    /// A NAPI instance by its id.
    NapiId(u32),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interface {
                name,
                queue: Some(queue),
            } => write!(f, "{name} queue {queue}"),
            Self::Interface { name, queue: None } => write!(f, "{name}"),
            Self::NapiId(id) => write!(f, "NAPI {id}"),
        }
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    /// `DEV` or `DEV:QUEUE`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, queue) = match text.split_once(':') {
            None => (text, None),
            Some((name, queue)) => {
                let number = queue
                    .parse()
                    .map_err(|_| format!("'{queue}' is not the number of a queue"))?;
                (name, Some(number))
            }
        };
        if !crate::netdev::is_ifname(name) {
            return Err(format!("'{name}' is not the name of an interface"));
        }
        Ok(Self::Interface {
            name: name.into(),
            queue,
        })
    }
}

/// The reference by which an attached instance is found again. An interface that is down may have
/// no instance of that id any more, but it still has the queue.
pub(crate) fn reference(napi: &Napi) -> NapiRef {
    match (&napi.ifname, napi.queue) {
        (Some(ifname), Some(queue)) => NapiRef::Queue {
            ifname: ifname.clone(),
            queue,
        },
        _ => NapiRef::Id(napi.napi_id),
    }
}

fn in_namespace(napi: &Napi, cookie: u64) -> bool {
    napi.netns_cookie.is_none_or(|its| its == cookie)
}

/// Whether the reference means this attached instance, seen from the namespace with the cookie.
pub(crate) fn names(reference: &NapiRef, napi: &Napi, cookie: u64) -> bool {
    match reference {
        NapiRef::Id(id) => napi.napi_id == *id,
        NapiRef::Queue { ifname, queue } => {
            in_namespace(napi, cookie)
                && napi.ifname.as_deref() == Some(ifname)
                && napi.queue == Some(*queue)
        }
    }
}

/// Whether the target means this attached instance, seen from the namespace with the cookie.
pub(crate) fn means(target: &Target, napi: &Napi, cookie: u64) -> bool {
    match target {
        Target::NapiId(id) => napi.napi_id == *id,
        Target::Interface { name, queue } => {
            in_namespace(napi, cookie)
                && napi.ifname.as_deref() == Some(name)
                && queue.is_none_or(|queue| napi.queue == Some(queue))
        }
    }
}
