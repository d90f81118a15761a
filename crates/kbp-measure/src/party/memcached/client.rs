// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The load of a memcached server: one TCP connection, requests at seeded times or one after the
//! other, every answer checked.
//!
//! In an open loop a request is sent when it is due, whatever has come back. Its time is that from
//! its last byte's way to the driver to that of the answer's from it ([`wire`]), or, where the
//! kernel does not say these, from when it was due to when the answer was read.
//!
//! Not here: more than one connection.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{ppoll, PollFd, PollFlags};
use nix::sys::time::TimeSpec;

use super::protocol::{Answer, Request};
use super::schedule::{Drawn, Schedule};
use super::{wire, TOOL};
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::party::program;
use crate::tester::pingpong::RoundTrips;

/// A server that says nothing for this long while answers are due is given up, nanoseconds.
const SILENCE_NS_MAX: u64 = 5_000_000_000;
/// More requests on their way than this are a rate that nobody holds.
const ON_THE_WAY_MAX: usize = 10_000;
/// How often an interrupt is looked for at least, nanoseconds.
const WAIT_NS_MAX: u64 = 50_000_000;

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The next one when the answer is there.
    Closed,
    /// At intervals that are uniform between the two, nanoseconds, whatever has come back.
    Open {
        /// Shortest interval.
        gap_ns_min: u64,
        /// Longest interval.
        gap_ns_max: u64,
    },
    /// At exponential intervals of this mean, nanoseconds: a Poisson process, whatever has come back.
    Poisson {
        /// Mean interval.
        gap_ns_mean: u64,
    },
}

/// Everything that defines a load.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// When requests are sent.
    pub pace: Pace,
    /// Keys that are asked for.
    pub keys: u32,
    /// How many percent of the requests are GETs; 90 in paper 003.
    pub get_percent: u64,
    /// Length of the measured part, nanoseconds.
    pub span_ns: u64,
    /// Seed of intervals, keys and kinds.
    pub seed: u64,
}

impl LoadConfig {
    /// Paper 003's: nine of ten are GETs, at intervals of 1 to 10 ms (100 to 1,000 a second).
    pub fn new(span_ns: u64, seed: u64) -> Self {
        Self {
            pace: Pace::Open {
                gap_ns_min: 1_000_000,
                gap_ns_max: 10_000_000,
            },
            keys: 1_000,
            get_percent: 90,
            span_ns,
            seed,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |why: &str| Err(Error::Invalid(why.into()));
        // With more keys than fit into memcached's default memory, values would go missing.
        if !(1..=20_000).contains(&self.keys) {
            return invalid("the number of keys has to be 1 to 20000");
        }
        if self.get_percent > 100 {
            return invalid("the share of GETs is at most 100 percent");
        }
        match self.pace {
            Pace::Open {
                gap_ns_min,
                gap_ns_max,
            } if gap_ns_min == 0 || gap_ns_max < gap_ns_min => {
                invalid("the intervals have to be above 0, and the longest not below the shortest")
            }
            Pace::Poisson { gap_ns_mean: 0 } => invalid("the mean interval has to be above 0"),
            _ => Ok(()),
        }
    }
}

/// What times of requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timed {
    /// The kernel's, from the driver to the driver.
    ByKernel,
    /// The client's own.
    ByClient,
}

/// What a load found.
#[derive(Debug, Clone)]
pub struct LoadReport {
    /// Whose times those of GETs and SETs are.
    pub timed: Timed,
    /// Response times of the GETs.
    pub gets: RoundTrips,
    /// Response times of the SETs.
    pub sets: RoundTrips,
    /// Whether requests were sent when they were due, whatever had come back.
    pub is_open: bool,
    /// Whether their times were those of a Poisson process.
    pub is_poisson: bool,
    /// Most requests that were on their way at once.
    pub on_the_way_max: usize,
    /// Longest time between the moment at which a request was due and that at which it was
    /// written, nanoseconds.
    pub send_late_ns_max: u64,
    /// Length of the measured part, nanoseconds.
    pub span_ns: u64,
}

/// Fills the server and loads it, on the calling thread.
///
/// # Errors
/// When it can't be reached, does not answer, or answers with another value than was stored.
pub fn load(
    server: SocketAddr,
    config: &LoadConfig,
    on_warm: impl FnOnce() -> Result<()>,
) -> Result<LoadReport> {
    config.check()?;
    let mut client = Client::connect(server, config)?;
    for key in 0..config.keys {
        client.send(key, true, monotonic_ns()?)?;
        while !client.on_the_way.is_empty() {
            client.step(u64::MAX)?;
        }
    }
    client.begin_measuring();
    on_warm()?;
    let start_ns = monotonic_ns()?;
    let end_ns = start_ns + config.span_ns;
    client.measure(start_ns, end_ns)?;
    if interrupt::requested() {
        return Err(Error::Interrupted("the load on memcached"));
    }
    while !client.on_the_way.is_empty() {
        client.step(u64::MAX)?;
    }
    client.report.span_ns = monotonic_ns()? - start_ns;
    Ok(client.report)
}

/// A request that was not answered yet.
struct Asked {
    request: Request,
    due_ns: u64,
    /// Its last byte, as [`wire::Left`] counts.
    last: u32,
    /// When its last byte went to the driver; `None` as long as the kernel has not said.
    left_ns: Option<u64>,
}

struct Client<'a> {
    config: &'a LoadConfig,
    stream: TcpStream,
    schedule: Schedule,
    /// How often each key was set.
    generations: Vec<u32>,
    /// In the order in which they were sent, which is that of the answers.
    on_the_way: VecDeque<Asked>,
    /// What is left to be written of each request.
    out: VecDeque<Vec<u8>>,
    /// Bytes of all requests, written or not; they wrap.
    queued: u32,
    /// Of the answer to the first that is on the way.
    came: Vec<u8>,
    /// Made once: to clear so much takes longer than what is measured.
    buffer: Vec<u8>,
    last_answer_ns: u64,
    /// The kernel's, if it has said of the last request that was to fill the server when it left and its answer came.
    timed: Timed,
    is_measuring: bool,
    report: LoadReport,
}

impl<'a> Client<'a> {
    fn connect(server: SocketAddr, config: &'a LoadConfig) -> Result<Self> {
        let failed = |e| Error::sys(format!("connect to memcached at {server}"), e);
        let stream = TcpStream::connect_timeout(&server, Duration::from_secs(5)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let timed = match wire::begin(&stream) {
            Ok(()) => Timed::ByKernel,
            Err(_) => Timed::ByClient,
        };
        Ok(Self {
            config,
            stream,
            schedule: Schedule::new(config),
            generations: vec![0; config.keys as usize],
            on_the_way: VecDeque::new(),
            out: VecDeque::new(),
            queued: 0,
            came: Vec::new(),
            buffer: vec![0; 1 << 12],
            last_answer_ns: monotonic_ns()?,
            timed,
            is_measuring: false,
            report: empty_report(config.pace, timed),
        })
    }

    /// Whose times are taken does not change from here on.
    fn begin_measuring(&mut self) {
        self.is_measuring = true;
        if self.timed == Timed::ByClient {
            wire::end(&self.stream);
        }
        self.report = empty_report(self.config.pace, self.timed);
    }

    /// Sends until `end_ns`, and reads what comes.
    fn measure(&mut self, start_ns: u64, end_ns: u64) -> Result<()> {
        let is_closed = self.config.pace == Pace::Closed;
        loop {
            let now_ns = monotonic_ns()?;
            if now_ns >= end_ns || interrupt::requested() {
                return Ok(());
            }
            let due_ns = self.schedule.due_ns().map(|due_ns| start_ns + due_ns);
            match due_ns {
                Some(due_ns) if due_ns <= now_ns => {
                    self.draw(due_ns)?;
                    continue;
                }
                None if is_closed && self.on_the_way.is_empty() => self.draw(now_ns)?,
                _ => {}
            }
            self.step(due_ns.map_or(end_ns, |due_ns| due_ns.min(end_ns)))?;
        }
    }

    /// Sends the next request of the seed.
    fn draw(&mut self, due_ns: u64) -> Result<()> {
        let Drawn { key, is_set } = self.schedule.draw();
        self.send(key, is_set, due_ns)
    }

    fn send(&mut self, key: u32, is_set: bool, due_ns: u64) -> Result<()> {
        if self.on_the_way.len() >= ON_THE_WAY_MAX {
            let why = format!(
                "{ON_THE_WAY_MAX} requests are on their way: it can't hold this rate; use longer \
                 intervals"
            );
            return Err(program::error(TOOL, why));
        }
        let generation = &mut self.generations[key as usize];
        *generation += u32::from(is_set);
        let generation = *generation;
        let request = if is_set {
            Request::Set { key, generation }
        } else {
            Request::Get { key, generation }
        };
        if self.on_the_way.is_empty() {
            self.last_answer_ns = monotonic_ns()?;
        }
        let mut bytes = Vec::new();
        request.write(&mut bytes);
        self.queued = self.queued.wrapping_add(bytes.len() as u32);
        self.out.push_back(bytes);
        self.on_the_way.push_back(Asked {
            request,
            due_ns,
            last: self.queued.wrapping_sub(1),
            left_ns: None,
        });
        self.write()?;
        self.take_left()?;
        let late_ns = monotonic_ns()?.saturating_sub(due_ns);
        let report = &mut self.report;
        report.on_the_way_max = report.on_the_way_max.max(self.on_the_way.len());
        report.send_late_ns_max = report.send_late_ns_max.max(late_ns);
        Ok(())
    }

    /// Writes as much as the connection takes.
    fn write(&mut self) -> Result<()> {
        while let Some(bytes) = self.out.front_mut() {
            match wire::write(&self.stream, bytes)? {
                Some(len) if len == bytes.len() => drop(self.out.pop_front()),
                Some(len) => drop(bytes.drain(..len)),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Waits for the connection or for `wake_ns`, and takes the answers that are there.
    fn step(&mut self, wake_ns: u64) -> Result<()> {
        let now_ns = monotonic_ns()?;
        if !self.on_the_way.is_empty() && now_ns - self.last_answer_ns > SILENCE_NS_MAX {
            let why = format!(
                "no answer for {} s to {} requests",
                SILENCE_NS_MAX / 1_000_000_000,
                self.on_the_way.len()
            );
            return Err(program::error(TOOL, why));
        }
        if interrupt::requested() && wake_ns == u64::MAX {
            return Err(program::error(TOOL, "interrupted; it was ended"));
        }
        self.wait(wake_ns.saturating_sub(now_ns).min(WAIT_NS_MAX))?;
        self.write()?;
        self.take_left()?;
        self.take_answers()
    }

    fn wait(&self, ns: u64) -> Result<()> {
        let mut flags = PollFlags::POLLIN;
        if !self.out.is_empty() {
            flags |= PollFlags::POLLOUT;
        }
        let mut entries = [PollFd::new(self.stream.as_fd(), flags)];
        let limit = TimeSpec::from(Duration::from_nanos(ns));
        match ppoll(&mut entries, Some(limit), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(Error::sys("wait for memcached", errno)),
        }
    }

    /// What the kernel has said of requests that went to the driver.
    fn take_left(&mut self) -> Result<()> {
        while let Some(left) = wire::left(&self.stream)? {
            mark_left(&mut self.on_the_way, left);
        }
        Ok(())
    }

    /// Reads one answer after the other, none further than to its end, whose time it is.
    fn take_answers(&mut self) -> Result<()> {
        loop {
            let want = self.on_the_way.front().map_or(1, |asked| {
                // One that is longer is no answer, but words to be shown.
                match asked.request.answer_len().saturating_sub(self.came.len()) {
                    0 => self.buffer.len(),
                    want => want,
                }
            });
            let Some(read) = wire::read(&self.stream, &mut self.buffer[..want])? else {
                return Ok(());
            };
            if read.len == 0 {
                return Err(program::error(TOOL, "it closed the connection"));
            }
            let now_ns = monotonic_ns()?;
            self.came.extend_from_slice(&self.buffer[..read.len]);
            self.take_answer(read.at_ns, now_ns)?;
        }
    }

    /// The answer to the first request, if it is complete; its last byte came at `came_ns`, and was read at `now_ns`.
    fn take_answer(&mut self, came_ns: Option<u64>, now_ns: u64) -> Result<()> {
        let Some(Asked { request, .. }) = self.on_the_way.front() else {
            return Err(program::error(TOOL, "it answers what was not asked"));
        };
        let request = *request;
        let answer = request.answer(&self.came);
        let Some((answer, len)) = answer.map_err(|why| program::error(TOOL, why))? else {
            return Ok(());
        };
        check(request, answer)?;
        self.take_left()?;
        self.came.drain(..len);
        self.last_answer_ns = now_ns;
        if let Some(asked) = self.on_the_way.pop_front() {
            let took_ns = self.took_ns(&asked, came_ns, now_ns)?;
            match request {
                Request::Get { .. } => &mut self.report.gets,
                Request::Set { .. } => &mut self.report.sets,
            }
            .record(took_ns);
        }
        Ok(())
    }

    /// How long a request took. A kernel that does not say it is found out while the server is being filled.
    fn took_ns(&mut self, asked: &Asked, came_ns: Option<u64>, now_ns: u64) -> Result<u64> {
        let by_kernel = asked.left_ns.zip(came_ns);
        match (self.timed, by_kernel) {
            _ if !self.is_measuring => {
                self.timed = match by_kernel {
                    Some(_) => Timed::ByKernel,
                    None => Timed::ByClient,
                };
                Ok(0)
            }
            (Timed::ByClient, _) => Ok(now_ns.saturating_sub(asked.due_ns)),
            (Timed::ByKernel, Some((left_ns, came_ns))) => {
                came_ns.checked_sub(left_ns).ok_or_else(|| {
                    program::error(TOOL, "the real-time clock was set back during the run")
                })
            }
            (Timed::ByKernel, None) => Err(program::error(
                TOOL,
                "the kernel did not say when a request left or its answer came: a queue of such times was full, or the \
                 interface has another driver now",
            )),
        }
    }
}

/// Of requests whose last byte is among those that left: when. One that was sent again keeps its first time.
fn mark_left(on_the_way: &mut VecDeque<Asked>, left: wire::Left) {
    let has_left = |asked: &Asked| (left.last.wrapping_sub(asked.last) as i32) >= 0;
    let asked = on_the_way.iter_mut().take_while(|asked| has_left(asked));
    for asked in asked.filter(|asked| asked.left_ns.is_none()) {
        asked.left_ns = Some(left.at_ns);
    }
}

/// A value that is wrong or gone ends the run: its times would mean nothing.
fn check(request: Request, answer: Answer) -> Result<()> {
    let said = match answer {
        Answer::Right => return Ok(()),
        Answer::Missing => "no value, although one was stored",
        Answer::Wrong => "another value than was stored",
    };
    Err(program::error(TOOL, format!("{request:?} brought {said}")))
}

fn empty_report(pace: Pace, timed: Timed) -> LoadReport {
    LoadReport {
        timed,
        is_open: pace != Pace::Closed,
        is_poisson: matches!(pace, Pace::Poisson { .. }),
        gets: RoundTrips::new(),
        sets: RoundTrips::new(),
        on_the_way_max: 0,
        send_late_ns_max: 0,
        span_ns: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_that_of_the_requests_up_to_its_byte() {
        let asked = |last: u32| Asked {
            request: Request::Get {
                key: 0,
                generation: 1,
            },
            due_ns: 0,
            last,
            left_ns: None,
        };
        // The counter wraps between the second and the third.
        let lasts = [u32::MAX - 100, u32::MAX, 70, 140];
        let mut on_the_way: VecDeque<Asked> = lasts.into_iter().map(asked).collect();
        let times = |on_the_way: &VecDeque<Asked>| {
            on_the_way
                .iter()
                .map(|asked| asked.left_ns)
                .collect::<Vec<_>>()
        };
        // A part of the second.
        for (last, at_ns, expected) in [
            (u32::MAX - 120, 1, [None; 4]),
            (u32::MAX - 50, 2, [Some(2), None, None, None]),
            (70, 3, [Some(2), Some(3), Some(3), None]),
            (70, 9, [Some(2), Some(3), Some(3), None]),
            (140, 10, [Some(2), Some(3), Some(3), Some(10)]),
        ] {
            mark_left(&mut on_the_way, wire::Left { last, at_ns });
            assert_eq!(times(&on_the_way), expected, "up to {last}");
        }
    }
}
