//! The daemon's life from a checked configuration to the signal that ends it.

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::Duration;

use log::{info, warn};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use super::config::{Config, Endpoint};
use super::ending::end_within;
use super::metrics;
use super::options::QueueNum;
use super::signals::{Signal, Signals};
use super::workers::Workers;
use crate::backend::{
    self, EndpointError, Entrance, LinkHandle, QueueNumUnit, Sessions, StopHandle,
};
use crate::device::{self, Features};
use crate::sys::take_inherited;
use crate::uplink::{OpenError, Uplink};
use crate::values::Counted;
use crate::worker::{Draft, SpawnError, Trace};

/// Most entries of a ring; QEMU offers no more either.
const RING_SIZE_MAX: u16 = 1024;

/// Why the daemon cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The host's device cannot be had.
    #[error("the uplink cannot be opened")]
    Uplink(#[source] OpenError),
    /// A descriptor named on the command line is not there.
    #[error("descriptor {fd} was not inherited")]
    Inherited {
        /// Its number.
        fd: RawFd,
        /// What is wrong with it.
        source: io::Error,
    },
    /// Nothing can be traced.
    #[error("{} cannot be written", path.display())]
    Pcap {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The front-end cannot be reached.
    #[error("the front-end's socket cannot be used")]
    Endpoint(#[from] EndpointError),
    /// A data thread cannot be had as it should be.
    #[error(transparent)]
    Worker(#[from] SpawnError),
    /// A thread or descriptor cannot be had.
    #[error("the process cannot get what it needs")]
    Resources(#[from] io::Error),
}

/// Time to end in good order; whatever hangs then is left behind.
const ORDERLY_END: Duration = Duration::from_secs(1);

/// Serves the front-end until a signal or, with `one_off`, the end of the first session. If the
/// end takes more than a second the whole process exits, with success.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: Config, mut signals: Signals) -> Result<(), RunError> {
    // A start that fails leaves alone what is another daemon's: it looks before it opens anything,
    // and the capture that it would replace comes behind all that may be taken. The socket is made
    // when there is a device, because whoever sees it takes the daemon for ready.
    let endpoint = endpoint(&config.endpoint)?;
    endpoint.check()?;
    let mut uplink = open_uplink(&config)?;
    let entrance = Entrance::claim(endpoint)?;
    let caps = uplink.caps();
    let queues = Counted(caps.queues, "queue");
    info!("{} is open with {queues}", uplink.name());

    let link = LinkHandle::new()?;
    let draft = config
        .pcap
        .as_ref()
        .map(|path| (path, Draft::new(caps.queues)));
    let (draft, tracers) = draft.map_or((None, Vec::new()), |(path, (draft, tracers))| {
        (Some((path, draft)), tracers)
    });
    let workers = Workers::start(&config, uplink.as_mut(), &link, tracers)?;
    let trace = draft.map(|(path, draft)| begin_trace(draft, path));
    let trace = trace.transpose()?;
    let mut sessions = Sessions::through(
        entrance,
        offer(&config, uplink.as_ref()),
        workers.controls(),
        link,
    )?;
    if config.one_off {
        sessions = sessions.one_off();
    }

    let stop = StopHandle::new()?;
    let stop_sessions = stop.clone();
    let serving = Builder::new().name("sessions".into()).spawn(move || {
        sessions.run(&stop_sessions);
        stop_sessions.stop();
    })?;
    wait(&mut signals, &stop, &workers)?;
    end_within(ORDERLY_END)?;
    stop.stop();
    if serving.join().is_err() {
        warn!("the sessions ended with an internal error");
    }
    drop(workers);
    if let Some(trace) = trace {
        trace.finish();
    }
    info!("end");
    Ok(())
}

/// Returns when a signal asks for the end or the last session is over.
fn wait(signals: &mut Signals, stop: &StopHandle, workers: &Workers) -> io::Result<()> {
    loop {
        let is_over = {
            let (signal, over) = (signals.fd(), stop.as_fd());
            let mut fds = [
                PollFd::new(&signal, PollFlags::IN),
                PollFd::new(&over, PollFlags::IN),
            ];
            retry_on_intr(|| poll(&mut fds, None))?;
            !fds[1].revents().is_empty()
        };
        for signal in signals.take() {
            match signal {
                Signal::Stop => return Ok(()),
                Signal::Counters => metrics::print(workers),
            }
        }
        if is_over {
            return Ok(());
        }
    }
}

fn begin_trace(draft: Draft, path: &Path) -> Result<Trace, RunError> {
    draft.begin(path).map_err(|source| RunError::Pcap {
        path: path.to_owned(),
        source,
    })
}

fn offer(config: &Config, uplink: &dyn Uplink) -> backend::Offer {
    let features: Features = device::Offer {
        // What the uplink does not take over is done in front of it (rules TX-7, TX-8).
        host: device::Offloads {
            csum: true,
            tso4: true,
            tso6: true,
            ecn: true,
            uso: true,
        },
        // Merged here, or by a host that hands merged datagrams on; one that takes them does.
        guest_uso: (config.gro.enabled && config.gro.udp_gro) || uplink.caps().tx.uso,
        multiqueue: config.queue_pairs > 1,
        mtu: config.mtu.is_some(),
        config_space: false,
    }
    .features();
    backend::Offer {
        features: features.bits(),
        ring_size_max: RING_SIZE_MAX,
        queue_num_unit: match config.queue_num {
            QueueNum::Pairs => QueueNumUnit::Pairs,
            QueueNum::Vrings => QueueNumUnit::Vrings,
        },
        config_space: None,
    }
}

fn endpoint(endpoint: &Endpoint) -> Result<backend::Endpoint, RunError> {
    Ok(match endpoint {
        Endpoint::Listen { path, mode } => backend::Endpoint::Listen {
            path: path.clone(),
            mode: *mode,
        },
        Endpoint::Connect { path, reconnect } => backend::Endpoint::Connect {
            path: path.clone(),
            retry: *reconnect,
        },
        Endpoint::Fd(fd) => backend::Endpoint::Fd(inherited(*fd)?),
    })
}

fn inherited(fd: RawFd) -> Result<OwnedFd, RunError> {
    take_inherited(fd).map_err(|source| RunError::Inherited { fd, source })
}

/// Opens the host's device.
fn open_uplink(config: &Config) -> Result<Box<dyn Uplink>, RunError> {
    let opened = config.uplink.open(config.queue_pairs);
    let opened = opened.expect("a configuration is made with an uplink");
    opened.map_err(RunError::Uplink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::{Offloads, UplinkCaps, UplinkQueue};

    struct Host {
        uso: bool,
    }

    impl Uplink for Host {
        fn name(&self) -> String {
            "host".into()
        }

        fn caps(&self) -> UplinkCaps {
            let tx = Offloads {
                csum: true,
                uso: self.uso,
                ..Offloads::default()
            };
            UplinkCaps {
                queues: 1,
                tx,
                batches: false,
            }
        }

        fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
            Vec::new()
        }
    }

    #[test]
    fn f35_uso_is_offered_where_anybody_merges_datagrams() {
        let uso = Features::GUEST_USO4 | Features::GUEST_USO6;
        for (option, by_host, expected) in [
            ("--gro=on", false, true),
            ("--gro=off", false, false),
            ("--udp-gro=off", false, false),
            ("--gro=off", true, true),
        ] {
            let args = ["test", "--socket-path=/s", "--tap=t", option];
            let config = Config::load(args.map(Into::into).to_vec()).expect("it is complete");
            let offer = offer(&config, &Host { uso: by_host });
            let offered = Features::from_bits(offer.features);
            assert_eq!(offered.contains(uso), expected, "{option}, {by_host}");
            assert!(
                offered.contains(Features::HOST_USO),
                "else it is cut in software"
            );
        }
    }
}
