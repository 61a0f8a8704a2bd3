//! QEMU's monitor protocol: one JSON value a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// QEMU answers at once, or is stuck.
const LIMIT: Duration = Duration::from_secs(30);

/// A monitor session after the handshake.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Qmp {
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT))?;
        let lines = BufReader::new(stream.try_clone()?);
        let mut qmp = Qmp { stream, lines };
        qmp.receive().context("QEMU's greeting")?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Carries out a command and gives its result.
    ///
    /// # Errors
    ///
    /// QEMU's refusal, in its words.
    pub(crate) fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({"execute": command, "arguments": arguments});
        self.stream.write_all(format!("{line}\n").as_bytes())?;
        loop {
            let mut answer = self.receive().with_context(|| format!("QMP {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            // Events come in between.
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            bail!("QEMU closed its monitor");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
