//! Commands to the guest over a virtio console port; `guest-init` is the other end.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::wait::now;

/// The host's end of the port.
#[derive(Debug)]
pub(crate) struct Console {
    stream: UnixStream,
    received: Vec<u8>,
    next_id: u32,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: i32,
    pub(crate) text: String,
}

impl Console {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Console {
            stream,
            received: Vec::new(),
            next_id: 0,
        }
    }

    /// Waits until the guest has come up (again) and forgets what it sent before.
    pub(crate) fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        self.read_until(b"\x01READY\n", limit)
            .context("the guest did not come up")
            .map(drop)
    }

    /// Runs a shell command to its end.
    pub(crate) fn run(&mut self, command: &str, limit: Duration) -> Result<Answer> {
        let id = self.send(command)?;
        let mark = format!("\x01END {id} ");
        let text = self
            .read_until(mark.as_bytes(), limit)
            .with_context(|| format!("in guest: {command}"))?;
        let status = self.read_until(b"\n", limit)?;
        let status = status
            .parse()
            .with_context(|| format!("status of {command}: {status:?}"))?;
        Ok(Answer { status, text })
    }

    /// Hands a command over without waiting for it, for one that never answers.
    pub(crate) fn send(&mut self, command: &str) -> Result<u32> {
        self.next_id += 1;
        let line = format!("{} {}\n", self.next_id, encode_base64(command.as_bytes()));
        self.stream
            .write_all(line.as_bytes())
            .context("the guest's console is closed")?;
        Ok(self.next_id)
    }

    /// What came before `mark`, which is taken away with it.
    fn read_until(&mut self, mark: &[u8], limit: Duration) -> Result<String> {
        let start = now();
        let mut searched = 0;
        loop {
            let found = self.received[searched..]
                .windows(mark.len())
                .position(|part| part == mark);
            if let Some(at) = found.map(|at| at + searched) {
                let rest = self.received.split_off(at + mark.len());
                let text = String::from_utf8_lossy(&self.received[..at]).into_owned();
                self.received = rest;
                return Ok(text);
            }
            searched = self.received.len().saturating_sub(mark.len());
            let Some(left) = limit
                .checked_sub(start.elapsed())
                .filter(|left| !left.is_zero())
            else {
                bail!("no answer within {limit:?}");
            };
            self.stream.set_read_timeout(Some(left))?;
            let mut buffer = [0; 16384];
            match self.stream.read(&mut buffer) {
                Ok(0) => bail!("QEMU closed the guest's console"),
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error).context("the guest's console"),
            }
        }
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base 64, which keeps any command in one line. Source: RFC 4648, section 4.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0, |word, &byte| (word << 8) | usize::from(byte));
        let word = word << (8 * (3 - group.len()));
        for digit in 0..4 {
            let six = (word >> (18 - 6 * digit)) & 0x3f;
            text.push(if digit <= group.len() {
                char::from(DIGITS[six])
            } else {
                '='
            });
        }
    }
    text
}

/// The reverse of [`encode_base64`]; line ends are skipped.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0_usize, 0);
    for digit in text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace() && *byte != b'=')
    {
        let six = DIGITS.iter().position(|&known| known == digit);
        word = (word << 6) | six.with_context(|| format!("not base 64: {text:.40}"))?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from((word >> bits) & 0xff)?);
        }
        word &= 0xff;
    }
    Ok(bytes)
}
