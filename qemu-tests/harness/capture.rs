//! Frames seen by `tcpdump` and frames sent by `tcpreplay`, in the guest or by the sender.
//!
//! Both exchange files in the pcap form: a header of 24 bytes, then each frame behind a record of
//! 16 bytes. Source: draft-ietf-opsawg-pcap.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::console::{decode_base64, encode_base64};
use super::kit::Kit;
use super::netns::Sender;
use super::process::{Process, output_of};
use super::sandbox::RUN_DIR;
use super::vm::Vm;
use super::wait::{wait_for, wait_until};

/// How long frames may take to arrive, tcpdump's start included.
const LIMIT: Duration = Duration::from_secs(20);

/// One captured frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    /// By the clock of whoever captured it.
    pub(crate) time: Duration,
    pub(crate) bytes: Vec<u8>,
}

/// Frames as a file for `tcpreplay`.
pub(crate) fn write_pcap(frames: &[Vec<u8>]) -> Result<Vec<u8>> {
    // Magic (microseconds), version 2.4, no time zone, no accuracy, snapshot length, Ethernet.
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];
    let mut file: Vec<u8> = header
        .iter()
        .flat_map(|word: &u32| word.to_le_bytes())
        .collect();
    for frame in frames {
        let length = u32::try_from(frame.len())?;
        file.extend(
            [0, 0, length, length]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        file.extend(frame);
    }
    Ok(file)
}

/// The frames of a file that may still be written to: an incomplete last one is left out.
pub(crate) fn read_pcap(file: &[u8]) -> Result<Vec<Frame>> {
    let word = |at: usize| {
        file.get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(u32::from_le_bytes)
    };
    let mut frames = Vec::new();
    let mut at = 24;
    ensure!(
        word(0).is_none_or(|magic| magic == 0xa1b2_c3d4),
        "not a capture of microseconds"
    );
    while let (Some(seconds), Some(micros), Some(captured), Some(length)) =
        (word(at), word(at + 4), word(at + 8), word(at + 12))
    {
        ensure!(captured == length, "tcpdump cut a frame off");
        let Some(bytes) = file.get(at + 16..at + 16 + usize::try_from(length)?) else {
            break;
        };
        let time = Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
        frames.push(Frame {
            time,
            bytes: bytes.to_vec(),
        });
        at += 16 + bytes.len();
    }
    Ok(frames)
}

/// A running `tcpdump` in a guest. It sees what the daemon delivered: the guest's own GRO is off.
#[derive(Debug)]
pub(crate) struct GuestCapture<'a> {
    vm: &'a Vm,
}

impl<'a> GuestCapture<'a> {
    /// Starts to record the frames that arrive and match `filter`.
    pub(crate) fn start(vm: &'a Vm, filter: &str) -> Result<Self> {
        // Each frame takes 64 KiB of the buffer, so the default one loses all but 32 of a burst.
        vm.run(&format!(
            "ethtool -K eth0 gro off && rm -f /tmp/capture && \
             (tcpdump -i eth0 -Q in -s 0 -B 16384 -U --immediate-mode -w /tmp/capture '{filter}' 2>/tmp/capture.log &) && \
             n=0; until grep -q listening /tmp/capture.log; do n=$((n+1)); [ $n -lt 500 ] || exit 1; usleep 20000; done"
        ))?;
        Ok(GuestCapture { vm })
    }

    /// What has been recorded as soon as `complete` says that nothing is missing.
    pub(crate) fn wait(&self, complete: impl Fn(&[Frame]) -> bool) -> Result<Vec<Frame>> {
        let mut seen = Vec::new();
        let result = wait_for("the arrival of all frames", LIMIT, || {
            seen = read_pcap(&decode_base64(&self.vm.run("base64 /tmp/capture")?)?)?;
            Ok(complete(&seen).then(|| seen.clone()))
        });
        result.with_context(|| {
            let sizes: Vec<_> = seen.iter().map(|frame| frame.bytes.len()).collect();
            format!("what arrived are frames of {sizes:?} bytes")
        })
    }
}

impl Drop for GuestCapture<'_> {
    fn drop(&mut self) {
        // The guest may have gone.
        let _ = self.vm.run("killall tcpdump; true");
    }
}

/// A running `tcpdump` on the sender's side.
#[derive(Debug)]
pub(crate) struct SenderCapture {
    file: PathBuf,
    _tcpdump: Process,
}

static NEXT_FILE: AtomicU32 = AtomicU32::new(0);

fn next_file() -> PathBuf {
    Path::new(RUN_DIR).join(format!(
        "frames{}.pcap",
        NEXT_FILE.fetch_add(1, Ordering::Relaxed)
    ))
}

impl SenderCapture {
    /// Starts to record the frames that reach the sender and match `filter`.
    pub(crate) fn start(kit: &Kit, sender: &Sender, filter: &str) -> Result<Self> {
        let file = next_file();
        let mut command = kit.tool("tcpdump")?;
        command.args([
            "-i",
            "eth0",
            "-Q",
            "in",
            "-s",
            "0",
            "-U",
            "--immediate-mode",
            "-Z",
            "root",
            "-w",
        ]);
        command.arg(&file).arg(filter);
        let log = file.with_extension("log");
        let mut tcpdump = sender.inside(|| Process::start("tcpdump", &mut command, log))?;
        wait_until("tcpdump's start", LIMIT, || {
            tcpdump.check_alive()?;
            Ok(tcpdump.log().contains("listening"))
        })?;
        Ok(SenderCapture {
            file,
            _tcpdump: tcpdump,
        })
    }

    /// What has been recorded as soon as `complete` says that nothing is missing.
    pub(crate) fn wait(&self, complete: impl Fn(&[Frame]) -> bool) -> Result<Vec<Frame>> {
        wait_for("the arrival of all frames", LIMIT, || {
            let frames = read_pcap(&std::fs::read(&self.file)?)?;
            Ok(complete(&frames).then_some(frames))
        })
    }
}

/// Sends frames as they are from the sender's interface, as fast as it goes.
pub(crate) fn send_from_sender(kit: &Kit, sender: &Sender, frames: &[Vec<u8>]) -> Result<()> {
    let file = next_file();
    std::fs::write(&file, write_pcap(frames)?)?;
    let mut command = kit.tool("tcpreplay")?;
    command
        .args(["--topspeed", "--preload-pcap", "--intf1=eth0"])
        .arg(&file);
    let said = sender.inside(|| output_of(&mut command))?;
    check_sent(&said, frames.len())
}

/// Sends frames as they are from the guest's interface.
pub(crate) fn send_from_guest(vm: &Vm, frames: &[Vec<u8>]) -> Result<()> {
    let file = encode_base64(&write_pcap(frames)?);
    let said = vm.run(&format!(
        "echo {file} | base64 -d >/tmp/send.pcap && tcpreplay --topspeed --intf1=eth0 /tmp/send.pcap"
    ))?;
    check_sent(&said, frames.len())
}

fn check_sent(said: &str, frames: usize) -> Result<()> {
    let sent = said
        .lines()
        .find_map(|line| line.trim().strip_prefix("Successful packets:"));
    if sent.and_then(|number| number.trim().parse().ok()) != Some(frames) {
        bail!("tcpreplay did not send {frames} frames: {said}");
    }
    Ok(())
}
