// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The typed client of the generic netlink family `kbp`.
//!
//! One method per operation of the spec, and the sentences for what can go wrong. Interrupts and
//! undo are not here; attaching with them is [`crate::plan`].

use std::time::Duration;

use crate::attr::{Attr, Attrs, DecodeError};
use crate::error::Class;
use crate::ethtool;
use crate::host::HostError;
use crate::model::{Napi, NapiRef, Notification, Poller, PollerSpec};
use crate::netlink::{Connection, Failure, Message, Refusal};
use crate::netns::{self, NetnsError};
use crate::service::Service;
use crate::uapi::{attr_napi, attr_poller, cmd, Backlog, FAMILY_NAME, FAMILY_VERSION, MCGRP_STATE};

/// A request to the family failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No loaded module has registered the family.
    #[error("the kbp module is not loaded; load it with `kbp load`")]
    NotLoaded,
    /// The caller may not do this.
    #[error("cannot {what}: that needs CAP_NET_ADMIN in the initial user namespace; run it as root on the host")]
    NoPrivilege {
        /// What was tried.
        what: String,
    },
    /// The kernel refused, with its own words where it gave any.
    #[error("cannot {what}: {}", explain(.refusal))]
    Refused {
        /// What was tried.
        what: String,
        /// What the kernel said.
        refusal: Refusal,
    },
    /// Events were lost because they came faster than they were read.
    #[error("events were lost because they came faster than they were read; `kbp show` has the present state")]
    EventsLost,
    /// The socket or the answer failed.
    #[error("cannot {what}: {failure}")]
    Transport {
        /// What was tried.
        what: String,
        /// What failed.
        failure: Failure,
    },
}

fn explain(refusal: &Refusal) -> String {
    let reason = std::io::Error::from_raw_os_error(refusal.errno);
    match (&refusal.message, refusal.missing) {
        (Some(message), _) => message.clone(),
        (None, Some(attr)) => format!("{reason}; the kernel misses attribute {attr}"),
        (None, None) => reason.to_string(),
    }
}

impl ClientError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::NotLoaded => Class::NotLoaded,
            Self::NoPrivilege { .. } => Class::NoPrivilege,
            Self::Refused { refusal, .. } => Class::of_errno(refusal.errno),
            Self::Transport {
                failure: Failure::NoAnswer,
                ..
            } => Class::TimedOut,
            Self::EventsLost | Self::Transport { .. } => Class::Failure,
        }
    }

    /// The kernel's error number, when it refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.errno),
            Self::NoPrivilege { .. } => Some(libc::EPERM),
            _ => None,
        }
    }

    pub(crate) fn new(what: impl Into<String>, failure: Failure) -> Self {
        let what = what.into();
        match failure {
            Failure::Refused(refusal)
                if refusal.errno == libc::EPERM && refusal.message.is_none() =>
            {
                Self::NoPrivilege { what }
            }
            Failure::Refused(refusal) => Self::Refused { what, refusal },
            Failure::Socket { source, .. } if source.raw_os_error() == Some(libc::ENOBUFS) => {
                Self::EventsLost
            }
            failure => Self::Transport { what, failure },
        }
    }
}

/// A connection to the family in the network namespace of the thread that made it.
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Connect; [`ClientError::NotLoaded`] when the module is not there.
    pub fn connect() -> Result<Self, ClientError> {
        let connection = Connection::open(FAMILY_NAME, FAMILY_VERSION)
            .map_err(|failure| ClientError::new("reach the kbp module", failure))?;
        connection
            .map(|connection| Self { connection })
            .ok_or(ClientError::NotLoaded)
    }

    /// Whether the family is registered, that is, whether the module serves requests.
    pub fn is_available() -> Result<bool, ClientError> {
        match Self::connect() {
            Ok(_) => Ok(true),
            Err(ClientError::NotLoaded) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Create a poller.
    pub fn poller_new(&mut self, spec: &PollerSpec) -> Result<(), ClientError> {
        let what = format!("create the poller of CPU {}", spec.cpu);
        self.request(what, cmd::POLLER_NEW, spec.to_attrs())
            .map(drop)
    }

    /// Stop a poller; its NAPIs go back to softirq.
    pub fn poller_del(&mut self, cpu: u32) -> Result<(), ClientError> {
        let what = format!("delete the poller of CPU {cpu}");
        self.request(
            what,
            cmd::POLLER_DEL,
            vec![Attr::u32(attr_poller::CPU, cpu)],
        )
        .map(drop)
    }

    /// Say who is to serve the backlog of a poller's CPU.
    pub fn poller_set_backlog(&mut self, cpu: u32, backlog: Backlog) -> Result<(), ClientError> {
        let what = format!("give the backlog of CPU {cpu} to {}", server(backlog));
        let attrs = vec![
            Attr::u32(attr_poller::CPU, cpu),
            Attr::u32(attr_poller::BACKLOG_REQUESTED, backlog.raw()),
        ];
        self.request(what, cmd::POLLER_SET, attrs).map(drop)
    }

    /// One poller.
    pub fn poller_get(&mut self, cpu: u32) -> Result<Poller, ClientError> {
        let what = format!("read the poller of CPU {cpu}");
        let replies = self.request(
            what.clone(),
            cmd::POLLER_GET,
            vec![Attr::u32(attr_poller::CPU, cpu)],
        )?;
        decode_one(what, replies, Poller::from_attrs)
    }

    /// All pollers, by CPU.
    pub fn pollers(&mut self) -> Result<Vec<Poller>, ClientError> {
        let mut pollers = self.dump("list the pollers", cmd::POLLER_GET, Poller::from_attrs)?;
        pollers.sort_by_key(|poller| poller.cpu);
        Ok(pollers)
    }

    /// Attach a NAPI instance to the poller of a CPU.
    pub fn napi_attach(
        &mut self,
        napi: &NapiRef,
        cpu: u32,
        service: &Service,
    ) -> Result<Napi, ClientError> {
        let what = format!("attach {napi} to the poller of CPU {cpu}");
        let mut attrs = napi.to_attrs();
        attrs.push(Attr::u32(attr_napi::CPU, cpu));
        attrs.extend(service.to_attrs());
        let replies = self.request(what.clone(), cmd::NAPI_ATTACH, attrs)?;
        decode_one(what, replies, Napi::from_attrs)
    }

    /// Give a NAPI instance back to softirq.
    pub fn napi_detach(&mut self, napi: &NapiRef) -> Result<(), ClientError> {
        self.request(format!("detach {napi}"), cmd::NAPI_DETACH, napi.to_attrs())
            .map(drop)
    }

    /// One attached NAPI instance.
    pub fn napi_get(&mut self, napi: &NapiRef) -> Result<Napi, ClientError> {
        let what = format!("read {napi}");
        let replies = self.request(what.clone(), cmd::NAPI_GET, napi.to_attrs())?;
        decode_one(what, replies, Napi::from_attrs)
    }

    /// All attached NAPI instances that the network namespace may see, by id.
    pub fn napis(&mut self) -> Result<Vec<Napi>, ClientError> {
        let mut napis = self.dump("list the attached NAPIs", cmd::NAPI_GET, Napi::from_attrs)?;
        napis.sort_by_key(|napi| napi.napi_id);
        Ok(napis)
    }

    /// Turn the connection into a stream of events.
    pub fn subscribe(mut self) -> Result<Events, ClientError> {
        let what = "subscribe to events";
        match self.connection.join(MCGRP_STATE) {
            Ok(true) => Ok(Events {
                connection: self.connection,
            }),
            Ok(false) => {
                let failure =
                    DecodeError::Packet(format!("the family has no group '{MCGRP_STATE}'")).into();
                Err(ClientError::new(what, failure))
            }
            Err(failure) => Err(ClientError::new(what, failure)),
        }
    }

    fn request(
        &mut self,
        what: String,
        command: u8,
        attrs: Vec<Attr>,
    ) -> Result<Vec<Message>, ClientError> {
        self.connection
            .request(command, attrs)
            .map_err(|failure| ClientError::new(what, failure))
    }

    fn dump<T>(
        &mut self,
        what: &str,
        command: u8,
        decode: Decode<T>,
    ) -> Result<Vec<T>, ClientError> {
        let messages = self
            .connection
            .dump(command)
            .map_err(|failure| ClientError::new(what, failure))?;
        let objects: Result<Vec<T>, _> = messages
            .iter()
            .map(|message| decode(&message.attrs))
            .collect();
        objects.map_err(|error| ClientError::new(what, error.into()))
    }
}

/// The requests of the family that plans need; [`Client`] has them, and tests have a kernel of their own.
pub trait Control {
    /// See [`Client::poller_new`].
    fn poller_new(&mut self, spec: &PollerSpec) -> Result<(), ClientError>;
    /// See [`Client::poller_get`].
    fn poller_get(&mut self, cpu: u32) -> Result<Poller, ClientError>;
    /// See [`Client::poller_set_backlog`].
    fn poller_set_backlog(&mut self, cpu: u32, backlog: Backlog) -> Result<(), ClientError>;
    /// See [`Client::poller_del`].
    fn poller_del(&mut self, cpu: u32) -> Result<(), ClientError>;
    /// See [`Client::pollers`].
    fn pollers(&mut self) -> Result<Vec<Poller>, ClientError>;
    /// See [`Client::napi_attach`].
    fn napi_attach(
        &mut self,
        napi: &NapiRef,
        cpu: u32,
        service: &Service,
    ) -> Result<Napi, ClientError>;
    /// See [`Client::napi_detach`].
    fn napi_detach(&mut self, napi: &NapiRef) -> Result<(), ClientError>;
    /// See [`Client::napi_get`].
    fn napi_get(&mut self, napi: &NapiRef) -> Result<Napi, ClientError>;
    /// See [`Client::napis`].
    fn napis(&mut self) -> Result<Vec<Napi>, ClientError>;
    /// See [`netns::cookie`].
    fn netns_cookie(&mut self) -> Result<u64, NetnsError>;
    /// See [`ethtool::has_queue_napis`].
    fn has_queue_napis(&mut self, ifname: &str) -> Result<bool, HostError>;
    /// See [`ethtool::permanent_address`].
    fn permanent_address(&mut self, ifname: &str) -> Result<Option<String>, HostError>;
}

impl Control for Client {
    fn poller_new(&mut self, spec: &PollerSpec) -> Result<(), ClientError> {
        Client::poller_new(self, spec)
    }
    fn poller_get(&mut self, cpu: u32) -> Result<Poller, ClientError> {
        Client::poller_get(self, cpu)
    }
    fn poller_set_backlog(&mut self, cpu: u32, backlog: Backlog) -> Result<(), ClientError> {
        Client::poller_set_backlog(self, cpu, backlog)
    }
    fn poller_del(&mut self, cpu: u32) -> Result<(), ClientError> {
        Client::poller_del(self, cpu)
    }
    fn pollers(&mut self) -> Result<Vec<Poller>, ClientError> {
        Client::pollers(self)
    }
    fn napi_attach(
        &mut self,
        napi: &NapiRef,
        cpu: u32,
        service: &Service,
    ) -> Result<Napi, ClientError> {
        Client::napi_attach(self, napi, cpu, service)
    }
    fn napi_detach(&mut self, napi: &NapiRef) -> Result<(), ClientError> {
        Client::napi_detach(self, napi)
    }
    fn napi_get(&mut self, napi: &NapiRef) -> Result<Napi, ClientError> {
        Client::napi_get(self, napi)
    }
    fn napis(&mut self) -> Result<Vec<Napi>, ClientError> {
        Client::napis(self)
    }
    fn netns_cookie(&mut self) -> Result<u64, NetnsError> {
        netns::cookie()
    }
    fn has_queue_napis(&mut self, ifname: &str) -> Result<bool, HostError> {
        ethtool::has_queue_napis(ifname)
    }
    fn permanent_address(&mut self, ifname: &str) -> Result<Option<String>, HostError> {
        ethtool::permanent_address(ifname)
    }
}

fn server(backlog: Backlog) -> &'static str {
    match backlog {
        Backlog::Softirq => "softirq",
        Backlog::Owned | Backlog::Attached => "its poller",
    }
}

type Decode<T> = fn(&Attrs) -> Result<T, DecodeError>;

fn decode_one<T>(what: String, replies: Vec<Message>, decode: Decode<T>) -> Result<T, ClientError> {
    let object = match replies.first() {
        Some(reply) => decode(&reply.attrs),
        None => Err(DecodeError::Packet(
            "the kernel acknowledged the request without an answer".into(),
        )),
    };
    object.map_err(|error| ClientError::new(what, error.into()))
}

/// Notifications of the family's multicast group `state`.
pub struct Events {
    connection: Connection,
}

impl Events {
    /// Wait for notifications; an empty list when `limit` passed without one that is known.
    /// `None` waits for ever.
    pub fn next(&mut self, limit: Option<Duration>) -> Result<Vec<Notification>, ClientError> {
        let failed = |failure| ClientError::new("read events", failure);
        let messages = self.connection.notifications(limit).map_err(failed)?;
        let mut notifications = Vec::new();
        for message in messages {
            let decoded = Notification::from_attrs(message.command, &message.attrs);
            notifications.extend(decoded.map_err(|error| failed(error.into()))?);
        }
        Ok(notifications)
    }
}
