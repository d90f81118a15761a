// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `kbp topo`: arguments and printing.
//!
//! Not here: topologies; they are [`kbp_lab::topo`].

use anyhow::Result;
use clap::{Args, Subcommand};
use kbp_core::Class;
use kbp_lab::topo::{self, End, Entry, Error, Kind, Port, Spec, RULES_DEFAULT};
use serde_json::json;

use crate::context::Context;
use crate::print;

const EXAMPLES: &str = "\
Examples:
  kbp topo list -v                      what there is to be made, drawn
  kbp topo add routed-nat --dry-run     every step, and nothing done
  kbp topo add routed-nat --rules 300   make it
  kbp topo show                         where client and server are
  ip netns exec kbp-routed-nat-wire sockperf ping-pong -i 10.91.4.1
  kbp topo del routed-nat               remove it, also after a crash";

/// Make, show and remove paths to measure on.
#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub enum TopoCommand {
    /// Make a topology.
    #[command(after_long_help = drawings())]
    Add(AddArgs),
    /// Remove a topology, whole or half made.
    Del(DelArgs),
    /// Show the topologies that there are.
    Show(ShowArgs),
    /// List the kinds of topologies and whether this machine can make them.
    List(ListArgs),
}

/// Arguments of `kbp topo add`.
#[derive(Args)]
pub struct AddArgs {
    /// What to make.
    kind: Kind,
    /// Its name; namespaces are called kbp-NAME-ROLE [default: the kind's name].
    #[arg(long)]
    name: Option<String>,
    /// How many filter rules a packet passes before one lets it through (bridge-netfilter, routed-nat, container).
    #[arg(long, value_name = "N", default_value_t = RULES_DEFAULT)]
    rules: u32,
    /// Steer what virtual interfaces receive to this CPU (rps_cpus).
    #[arg(long, value_name = "N")]
    rps_cpu: Option<u32>,
    /// For nic: the server's card, the tester's card [default: eth0,eth1].
    #[arg(long, value_name = "A,B", value_parser = two_cards)]
    nics: Option<[String; 2]>,
    /// Print the steps instead of doing them.
    #[arg(long)]
    dry_run: bool,
}

/// Arguments of `kbp topo del`.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct DelArgs {
    /// Its name.
    name: Option<String>,
    /// All that there are.
    #[arg(long)]
    all: bool,
}

/// Arguments of `kbp topo show`.
#[derive(Args)]
pub struct ShowArgs {
    /// Only this one.
    name: Option<String>,
}

/// Arguments of `kbp topo list`.
#[derive(Args)]
pub struct ListArgs {
    /// Draw them.
    #[arg(short, long)]
    verbose: bool,
}

fn two_cards(text: &str) -> Result<[String; 2], String> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    names
        .try_into()
        .map_err(|_| "two interfaces are needed, with a comma between: eth0,eth1".into())
}

fn drawings() -> String {
    let draw = |kind: Kind| format!("{kind}: {}\n\n{}\n", kind.about(), indented(kind));
    Kind::ALL.map(draw).join("\n")
}

fn indented(kind: Kind) -> String {
    let lines = kind.drawing().lines();
    lines
        .map(|line| format!("  {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The exit code of an error.
pub fn exit_code(error: &Error) -> u8 {
    let class = match error {
        Error::NoPrivilege { .. } => Class::NoPrivilege,
        Error::Argument(_) => Class::Usage,
        Error::CannotRun { .. } => Class::Unsupported,
        Error::Exists { .. } | Error::Taken { .. } | Error::Busy { .. } => Class::Conflict,
        Error::Unknown { .. } => Class::NotFound,
        Error::TimedOut { .. } => Class::TimedOut,
        Error::LeftBehind { .. } => Class::LeftChanged,
        Error::Step { reason, .. } => return exit_code(reason),
        _ => Class::Failure,
    };
    class.exit_code()
}

/// Run `kbp topo`.
pub fn run(command: TopoCommand, context: &Context) -> Result<()> {
    match command {
        TopoCommand::Add(args) => add(args, context),
        TopoCommand::Del(args) => del(&args, context),
        TopoCommand::Show(args) => show(&args, context),
        TopoCommand::List(args) => list(&args, context),
    }
}

fn add(args: AddArgs, context: &Context) -> Result<()> {
    let defaults = Spec::new(args.kind);
    let spec = Spec {
        name: args.name.unwrap_or(defaults.name),
        rules: args.rules,
        nics: args.nics.unwrap_or(defaults.nics),
        rps_cpu: args.rps_cpu,
        ..defaults
    };
    if args.dry_run {
        let steps = topo::steps(&spec)?;
        return match context.json {
            true => print::json(context, &json!({ "steps": steps })),
            false => print::lines(steps),
        };
    }
    kbp_measure::interrupt::catch()?;
    let topology = topo::add_unless(&spec, &kbp_measure::interrupt::requested)?;
    if context.json {
        return print::json(context, &topology);
    }
    print_entry(&Entry {
        topology,
        complete: true,
    })
}

/// Removes as many as possible; the first error is the one that is told, the others are notes.
fn del(args: &DelArgs, context: &Context) -> Result<()> {
    let names: Vec<String> = match &args.name {
        Some(name) => vec![name.clone()],
        None => topo::entries()?
            .into_iter()
            .map(|entry| entry.topology.spec.name)
            .collect(),
    };
    // Removing is never stopped half way.
    kbp_measure::interrupt::catch()?;
    let mut first = None;
    let mut removed = Vec::new();
    for name in names {
        match topo::del(&name) {
            Ok(()) => removed.push(name),
            Err(error) if first.is_none() => first = Some(error),
            Err(error) => print::note(error),
        }
    }
    match context.json {
        true => print::json(context, &json!({ "removed": removed }))?,
        false => print::lines(removed.iter().map(|name| format!("removed {name}")))?,
    }
    first.map_or(Ok(()), |error| Err(error.into()))
}

fn show(args: &ShowArgs, context: &Context) -> Result<()> {
    let mut entries = topo::entries()?;
    if let Some(name) = &args.name {
        entries.retain(|entry| entry.topology.spec.name == *name);
        if entries.is_empty() {
            return Err(Error::Unknown { name: name.clone() }.into());
        }
    }
    if context.json {
        return print::json(context, &entries);
    }
    if entries.is_empty() {
        return print::line("there is no topology; `kbp topo add KIND` makes one");
    }
    for (number, entry) in entries.iter().enumerate() {
        if number > 0 {
            print::line("")?;
        }
        print_entry(entry)?;
    }
    Ok(())
}

fn print_entry(entry: &Entry) -> Result<()> {
    let topology = &entry.topology;
    let spec = &topology.spec;
    let rules = match spec.kind.has_rules() {
        true => format!(", {} rules", spec.rules),
        false => String::new(),
    };
    print::line(format!("{} ({}{rules})", spec.name, spec.kind))?;
    if !entry.complete {
        print::line(format!(
            "  not complete: it is being made, or that was cut short; `kbp topo del {}` removes it",
            spec.name
        ))?;
    }
    print::line(format!("  client  {}", describe_end(&topology.client)))?;
    print::line(format!("  server  {}", describe_end(&topology.server)))?;
    print::line(format!("  target  {}", topology.target))?;
    let ports: Vec<String> = topology.ports.iter().map(describe_port).collect();
    print::line(format!("  receive {}", ports.join(", ")))
}

fn describe_end(end: &End) -> String {
    let place = end.netns.as_ref().map_or_else(
        || "here".into(),
        |netns| format!("in the namespace {netns}"),
    );
    let container = match &end.container {
        Some(id) => format!(", container {id}"),
        None => String::new(),
    };
    format!("{} on {} {place}{container}", end.address, end.ifname)
}

fn describe_port(port: &Port) -> String {
    match &port.netns {
        Some(netns) => format!("{netns}/{}", port.ifname),
        None => port.ifname.clone(),
    }
}

fn list(args: &ListArgs, context: &Context) -> Result<()> {
    let kinds = Kind::ALL.map(|kind| (kind, topo::can_run(kind)));
    if context.json {
        let describe = |(kind, can): &(Kind, Result<(), String>)| {
            json!({
                "kind": kind,
                "about": kind.about(),
                "can_run": can.is_ok(),
                "reason": can.as_ref().err(),
            })
        };
        return print::json(context, &kinds.iter().map(describe).collect::<Vec<_>>());
    }
    for (kind, can) in &kinds {
        print::line(format!("{kind:<17} {}", kind.about()))?;
        if let Err(reason) = can {
            print::line(format!("{:17} not here: {reason}", ""))?;
        }
        if args.verbose {
            print::line(format!("\n{}\n", indented(*kind)))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cards_are_two() {
        assert_eq!(two_cards("a,b"), Ok(["a".into(), "b".into()]));
        for wrong in ["a", "a,b,c"] {
            assert!(two_cards(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_of_topologies_have_their_exit_codes() {
        let name = String::from("x");
        let left = Error::LeftBehind {
            name: name.clone(),
            what: vec!["y".into()],
            after: None,
        };
        assert_eq!(exit_code(&left), 9);
        assert_eq!(exit_code(&Error::Unknown { name: name.clone() }), 6);
        let step = Error::Step {
            step: "do".into(),
            reason: Box::new(Error::NoPrivilege { what: name }),
        };
        assert_eq!(exit_code(&step), 5);
    }
}
