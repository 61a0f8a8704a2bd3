//! Where the peer is: `PATH` or `HOST:PORT`, to connect to, or behind `listen:` to be connected to.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The word that makes a server of us.
const LISTEN: &str = "listen:";

/// Source: unix(7), `sun_path`, less the terminating zero.
const PATH_MAX: usize = 107;

/// Whether the peer is waited for, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddress {
    /// The peer connects to us.
    pub listens: bool,
    /// Where.
    pub place: Place,
}

/// A place for a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A socket of the file system.
    Unix(PathBuf),
    /// TCP.
    Tcp {
        /// Name or address, an IPv6 address without its brackets.
        host: String,
        /// Port, not 0.
        port: u16,
    },
}

/// What an address looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// Neither of the two.
    #[error("expected a path with a slash or HOST:PORT, with or without listen: before it")]
    Form,
    /// A path that no socket can have.
    #[error("expected a path of at most {PATH_MAX} bytes")]
    TooLong,
}

impl FromStr for StreamAddress {
    type Err = AddressFault;

    fn from_str(text: &str) -> Result<Self, AddressFault> {
        let behind = text.strip_prefix(LISTEN);
        Ok(Self {
            listens: behind.is_some(),
            place: behind.unwrap_or(text).parse()?,
        })
    }
}

impl FromStr for Place {
    type Err = AddressFault;

    fn from_str(text: &str) -> Result<Self, AddressFault> {
        if text.contains('/') {
            return match text.len() {
                0..=PATH_MAX => Ok(Self::Unix(text.into())),
                _ => Err(AddressFault::TooLong),
            };
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressFault::Form)?;
        let in_brackets = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let port = port.parse().ok().filter(|port| *port != 0);
        match (in_brackets.unwrap_or(host), port) {
            ("", _) | (_, None) => Err(AddressFault::Form),
            // Which colon is the last one of the address cannot be told.
            (host, Some(_)) if host.contains(':') && in_brackets.is_none() => {
                Err(AddressFault::Form)
            }
            (host, Some(port)) => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
            }),
        }
    }
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listen = if self.listens { LISTEN } else { "" };
        match &self.place {
            Place::Unix(path) => write!(f, "{listen}{}", path.display()),
            Place::Tcp { host, port } if host.contains(':') => {
                write!(f, "{listen}[{host}]:{port}")
            }
            Place::Tcp { host, port } => write!(f, "{listen}{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_the_same() {
        for text in [
            "/run/passt.sock",
            "./relative",
            "listen:/run/a:b",
            "localhost:5000",
            "listen:0.0.0.0:1",
            "[::1]:65535",
            "listen:[fe80::1%eth0]:7",
        ] {
            let address: StreamAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address.listens, text.starts_with("listen:"));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "passt",
            ":5000",
            "host:",
            "host:0",
            "host:65536",
            "::1:5",
            "listen:",
            "[]:1",
        ] {
            assert_eq!(
                text.parse::<StreamAddress>(),
                Err(AddressFault::Form),
                "{text}"
            );
        }
        let long = format!("/{}", "x".repeat(107));
        assert_eq!(long.parse::<StreamAddress>(), Err(AddressFault::TooLong));
    }
}
