// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When bytes of a TCP connection left this host and came to it, by the kernel's times: of what is sent, when it goes to
//! the driver; of what is received, when the driver hands it to the stack. Those of a packet socket are the same
//! ([`super::super::sip`]), but here the kernel knows which bytes a frame has.
//!
//! Not here: what the bytes are.

use std::io::IoSliceMut;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    recvmsg, send, setsockopt, sockopt, ControlMessageOwned, MsgFlags, TimestampingFlag,
};
use nix::sys::time::TimeSpec;

use crate::error::{Error, Result};

/// `SO_EE_ORIGIN_TIMESTAMPING` of linux/errqueue.h.
const ORIGIN_TIMESTAMPING: u8 = 4;

/// Bytes that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// How many; 0 when the other end has closed the connection.
    pub len: usize,
    /// When the last of them came, nanoseconds of the kernel's real-time clock; `None` where it did not say.
    pub at_ns: Option<u64>,
}

/// Bytes that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// All up to this one, counted from the first after [`begin`] as 0; it wraps.
    pub last: u32,
    /// When, nanoseconds of the kernel's real-time clock.
    pub at_ns: u64,
}

/// Asks the kernel for its times; nothing may be on its way.
///
/// # Errors
/// When it has none.
pub fn begin(stream: &TcpStream) -> Result<()> {
    let flags = TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
        | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
    setsockopt(stream, sockopt::Timestamping, &flags)
        .map_err(|errno| Error::sys("ask for the kernel's times of a connection", errno))
}

/// Ends what [`begin`] began, and throws away what was not read.
pub fn end(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::Timestamping, &TimestampingFlag::empty());
    while let Ok(Some(_)) = left(stream) {}
}

/// Writes as much as there is room for; `None` when there is none. The kernel has one time a frame, so it may join none
/// of these bytes with those of the next call.
///
/// # Errors
/// Those of writing.
pub fn write(stream: &TcpStream, bytes: &[u8]) -> Result<Option<usize>> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_EOR | MsgFlags::MSG_NOSIGNAL;
    match send(stream.as_raw_fd(), bytes, flags) {
        Ok(len) => Ok(Some(len)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(errno) => Err(Error::sys("write to a connection", errno)),
    }
}

/// Reads what is there, as far as the buffer goes; `None` when nothing is.
///
/// # Errors
/// Those of reading.
pub fn read(stream: &TcpStream, buffer: &mut [u8]) -> Result<Option<Came>> {
    let mut space = nix::cmsg_space!([TimeSpec; 3]);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_DONTWAIT,
    );
    let message = match received {
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        received => received.map_err(|errno| Error::sys("read from a connection", errno))?,
    };
    let at_ns = message
        .cmsgs()
        .map_err(|errno| Error::sys("read the time of received bytes", errno))?
        .find_map(|control| match control {
            ControlMessageOwned::ScmTimestampsns(times) => Some(nanoseconds(times.system)),
            _ => None,
        });
    Ok(Some(Came {
        len: message.bytes,
        at_ns,
    }))
}

/// The next bytes that left, in their order; `None` when no more have, as far as the kernel has said yet.
///
/// # Errors
/// Those of reading.
pub fn left(stream: &TcpStream) -> Result<Option<Left>> {
    let mut space = nix::cmsg_space!([TimeSpec; 3], libc::sock_extended_err, libc::sockaddr_in6);
    loop {
        let received = recvmsg::<()>(
            stream.as_raw_fd(),
            &mut [],
            Some(&mut space),
            MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT,
        );
        let message = match received {
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => continue,
            received => {
                received.map_err(|errno| Error::sys("read the times of sent bytes", errno))?
            }
        };
        let (mut at_ns, mut last) = (None, None);
        for control in message
            .cmsgs()
            .map_err(|errno| Error::sys("read the time of sent bytes", errno))?
        {
            match control {
                ControlMessageOwned::ScmTimestampsns(times) => {
                    at_ns = Some(nanoseconds(times.system));
                }
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _)
                    if error.ee_origin == ORIGIN_TIMESTAMPING =>
                {
                    last = Some(error.ee_data);
                }
                _ => {}
            }
        }
        if let (Some(last), Some(at_ns)) = (last, at_ns) {
            return Ok(Some(Left { last, at_ns }));
        }
    }
}

fn nanoseconds(time: TimeSpec) -> u64 {
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::sleep;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    fn now_ns() -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    }

    /// Both ends of a connection over the loopback.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        one.set_nodelay(true).unwrap();
        let (other, _) = listener.accept().unwrap();
        (one, other)
    }

    #[test]
    fn each_write_and_each_read_has_its_time() {
        let (near, far) = connection();
        let mut buffer = [0; 4096];
        begin(&near).unwrap();
        begin(&far).unwrap();
        assert_eq!(left(&near).unwrap(), None);
        assert_eq!(read(&far, &mut buffer).unwrap(), None);
        // The kernel begins a little after it was asked.
        let (mut last, mut end_ns) = (0, 0);
        loop {
            assert_eq!(write(&near, &[9]).unwrap(), Some(1));
            last += 1;
            let came = loop {
                if let Some(came) = read(&far, &mut buffer).unwrap() {
                    break came;
                }
            };
            if came.at_ns.is_some() {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        while left(&near).unwrap().is_some() {}
        for len in [10, 1_000, 1, 3_000] {
            let before_ns = now_ns();
            assert_eq!(write(&near, &buffer[..len]).unwrap(), Some(len));
            let mut came = Came {
                len: 0,
                at_ns: None,
            };
            while came.len < len {
                if let Some(more) = read(&far, &mut buffer[came.len..]).unwrap() {
                    came = Came {
                        len: came.len + more.len,
                        at_ns: more.at_ns,
                    };
                }
            }
            let sent = left(&near).unwrap().expect("when it left");
            let after_ns = now_ns();
            last += len as u32;
            assert_eq!(sent.last, last - 1, "{len} bytes");
            let came_ns = came.at_ns.expect("when it came");
            assert!(
                before_ns <= sent.at_ns && sent.at_ns <= came_ns && came_ns <= after_ns,
                "{len} bytes: {before_ns} {sent:?} {came:?} {after_ns}"
            );
            assert!(end_ns <= sent.at_ns);
            end_ns = after_ns;
            sleep(Duration::from_millis(1));
        }
        assert_eq!(left(&near).unwrap(), None);
        drop(near);
        let end = loop {
            if let Some(end) = read(&far, &mut buffer).unwrap() {
                break end;
            }
        };
        assert_eq!(end.len, 0);
    }
}
