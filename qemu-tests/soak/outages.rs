//! What the daemon is attached to goes down and up, is taken away and made again, all of it under
//! traffic; some seconds of quiet operation come before each time.
//!
//! ```text
//!   sender --- bridge --- port --- daemon --- guest
//!          sent      passed    read   delivered  received
//! ```
//!
//! Every place counts by itself. While the port stays, all of them must agree to the frame. While
//! it comes and goes, frames are lost: before the port, whose counters then have less than the
//! sender's; behind it, where nobody was attached in time, and the daemon's have less than the
//! port's; or in the daemon, under a reason. From there on nothing may be missing in either case.
//! What the guest sends without a link is thrown away by QEMU; from the daemon on nothing is
//! missing of that either.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::flows::{self, Portion};
use super::reading::Reading;
use super::together::{self, Flow, Watch, say};
use super::{GROWTH_KIB, complaints};
use crate::harness::attachment::Port;
use crate::harness::counters::InterfaceCounters;
use crate::harness::wait::wait_for;
use crate::harness::{Daemon, Lab, Vm};
use crate::lifecycle::wait_for_carrier;
use crate::payload::Family;
use crate::scene::{Site, Stage};

/// From one quiet time to the next.
const TURN: Duration = Duration::from_secs(20);
/// How long an interface is down that stays.
const DOWN: Duration = Duration::from_millis(500);

pub(super) fn soak(stage: &Stage<'_>) -> Result<()> {
    let turns = (super::length()?.as_secs() / TURN.as_secs()).max(1);
    let mut site = stage.site(true)?;
    let (daemon, vm) = (site.daemon()?, site.guest()?);
    let Site { port, lab, .. } = &mut site;
    let portion = Portion::of(TURN);
    flows::serve(&vm, portion)?;
    flows::serve_probes(&vm)?;
    let cast = Cast {
        vm: &vm,
        daemon: &daemon,
        lab,
        portion,
        hash_of_source: flows::hash_of_source(&vm)?,
    };
    let start = cast.moment(port)?;
    let mut last = start.clone();
    for turn in 1..=turns {
        together::run(&format!("as it is, {turn}"), &cast.flows(), |watch| {
            watch.pass(TURN * 2 / 5);
            Ok(())
        })?;
        let quiet = cast.moment(port)?;
        quiet.check_nothing_is_missing(&last)?;
        let name = format!("with outages, {turn}");
        together::run(&name, &cast.flows(), |watch| cast.outages(port, watch))?;
        last = cast.moment(port)?;
        last.check_what_is_missing(&quiet, port)?;
    }
    let levels = [&start, &last].map(|moment| moment.reading.resident_kib);
    ensure!(
        levels[1] <= levels[0] + GROWTH_KIB,
        "the daemon's memory grew: {levels:?} KiB"
    );
    say(&format!("  daemon's memory: {levels:?} KiB\n"));
    complaints(&vm)
}

/// All that stays.
struct Cast<'a> {
    vm: &'a Vm,
    daemon: &'a Daemon,
    lab: &'a Lab<'a>,
    portion: Portion,
    hash_of_source: String,
}

/// What has been counted until a moment at which nothing moves.
#[derive(Debug, Clone)]
struct Moment {
    /// Frames that left the sender.
    sent: u64,
    reading: Reading,
}

impl Cast<'_> {
    fn moment(&self, port: &Port) -> Result<Moment> {
        let sent = || {
            let counters = self.lab.sender.inside(|| InterfaceCounters::read("eth0"));
            counters.map(|counters| counters.tx_packets)
        };
        wait_for("a moment of quiet", Duration::from_secs(60), || {
            let before = sent()?;
            let reading = Reading::take(self.vm, self.daemon, port, self.lab)?;
            let moment = Moment {
                sent: before,
                reading,
            };
            Ok((sent()? == before).then_some(moment))
        })
    }

    fn outages(&self, port: &mut Port, watch: &Watch<'_, '_>) -> Result<()> {
        let between = TURN / 5;
        port.set_up(self.lab, false)?;
        watch.pass(DOWN);
        port.set_up(self.lab, true)?;
        wait_for_carrier(self.vm, true).context("after it was down")?;
        watch.pass(between);

        port.remove(self.lab)?;
        wait_for_carrier(self.vm, false).context("after it was removed")?;
        port.make_again(self.lab)?;
        wait_for_carrier(self.vm, true).context("after it was made again")?;
        watch.pass(between);

        // Before anybody has seen that it is gone.
        port.remove(self.lab)?;
        port.make_again(self.lab)?;
        watch.pass(between);
        wait_for_carrier(self.vm, true).context("after it was replaced")
    }

    fn flows(&self) -> Vec<Flow<'_>> {
        let sender = &self.lab.sender;
        let (ip4, ip6) = (self.vm.ip4.as_str(), self.vm.ip6.as_str());
        let into = |name, to| Flow::into(name, sender, to, self.portion);
        let out = |name, from| Flow::out_of(name, sender, from, &self.hash_of_source);
        let probes = |name, family, address| {
            Flow::new(name, move |stop, done| {
                sender.inside(|| flows::probes(sender, family, address, stop, done))
            })
        };
        vec![
            into("bulk in, IPv4", ip4),
            into("bulk in, IPv6", ip6),
            out("bulk out, IPv4", ip4),
            out("bulk out, IPv6", ip6),
            Flow::dialogue("requests, IPv4", sender, ip4),
            Flow::dialogue("requests, IPv6", sender, ip6),
            probes("datagrams and back, IPv4", Family::V4, ip4),
            probes("datagrams and back, IPv6", Family::V6, ip6),
        ]
    }
}

impl Moment {
    /// Frames since `before` that the sender sent and that never came to the port.
    fn before_the_port(&self, before: &Moment) -> Result<u64> {
        let at_port = |moment: &Moment| {
            let passed = &moment.reading.passed;
            passed.to_daemon + passed.dropped
        };
        let (sent, came) = (self.sent - before.sent, at_port(self) - at_port(before));
        sent.checked_sub(came)
            .with_context(|| format!("{sent} frames were sent, and {came} came to the port"))
    }

    fn check_nothing_is_missing(&self, before: &Moment) -> Result<()> {
        let missing = self.before_the_port(before)?;
        ensure!(missing == 0, "{missing} frames never came to the port");
        self.reading.compare(&before.reading)?;
        say(&format!("{}", self.reading));
        Ok(())
    }

    fn check_what_is_missing(&self, before: &Moment, port: &Port) -> Result<()> {
        let reading = &self.reading;
        let unseen = reading.compare_with_outages(&before.reading)?;
        ensure!(
            unseen == 0 || !port.waits_for_taker(),
            "{unseen} frames were taken from the port, and then lost"
        );
        let dropped = reading.passed.dropped - before.reading.passed.dropped;
        say(&format!(
            "{reading}  lost on the way to the daemon: {} without a port, {dropped} at the port, {unseen} with nobody attached; \
             on the way from the guest: {} by QEMU, without a link\n",
            self.before_the_port(before)?,
            reading.unsent(&before.reading)?,
        ));
        Ok(())
    }
}
