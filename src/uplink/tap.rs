//! A tap as uplink: opened by name or taken over by descriptor, one queue for each queue pair.
//!
//! Every tap is brought to the same state before its first frame: a virtio-net header of 12 bytes,
//! little endian, and no offload towards us. The offload mask then follows what the guest acked,
//! and is nothing again when the queues are dropped. Addresses, bridge membership and the up/down
//! state of the interface are the operator's business.
//!
//! A tap that was opened by name and is deleted is waited for (`follower`): the guest sees a link
//! without carrier until one of that name is there again. One that came as descriptor is gone.

mod error;
mod follower;
mod options;
mod queue;

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionbio};

pub use error::{TapError, check_name};
pub use options::TapOptions;
pub use queue::TapQueue;

use self::follower::{Follower, TapDevice};
use self::queue::TUN_F_USO;
use super::{Offloads, Uplink, UplinkCaps, UplinkQueue};
use crate::sys::ifreq::{
    IFF_DETACH_QUEUE, IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_VNET_HDR, TUN_F_CSUM, tun_get_iff,
    tun_has_packet_info, tun_is_vnet_le, tun_set_iff, tun_set_offload, tun_set_queue,
    tun_set_vnet_hdr_len, tun_set_vnet_le, tun_vnet_hdr_len,
};
use crate::wire::vnet_hdr::VNET_HDR_LEN;

const TUN_PATH: &str = "/dev/net/tun";
/// What every queue is opened with; a queue that joins others gets what they have.
const FLAGS: u16 = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;

/// Whether the device shall outlive the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// As it was before; a device that is created here goes with the daemon.
    #[default]
    Unchanged,
    /// It stays.
    Persistent,
    /// It goes with its last descriptor.
    Temporary,
}

/// A tap and those of its queues that nobody took yet.
#[derive(Debug)]
pub struct Tap {
    name: String,
    caps: UplinkCaps,
    queues: Vec<TapQueue>,
}

impl Tap {
    /// Opens the tap `name` with one queue for each of `pairs` queue pairs, and creates it if it
    /// does not exist.
    ///
    /// A single pair takes whatever queue mode an existing tap has; several need a multi-queue
    /// tap.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(name: &str, pairs: usize, persistence: Persistence) -> Result<Self, TapError> {
        check_name(name)?;
        let (first, mode) = attach_first(name, pairs)?;
        let device = TapDevice {
            name: name.to_owned(),
            mode,
            persistence,
        };
        let mut fds = vec![first];
        while fds.len() < pairs {
            fds.push(device.attach(pairs)?);
        }
        let mut tap = Self::from_attached(name.to_owned(), fds)?;
        for queue in &mut tap.queues {
            device.persist(queue.fd())?;
            let follower = Follower::new(device.clone());
            queue.follow_by(follower.map_err(setup("be told of changes", name))?);
        }
        Ok(tap)
    }

    /// Takes over descriptors of an open tap, one for each of `pairs` queue pairs.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn from_fds(fds: Vec<OwnedFd>, pairs: usize) -> Result<Self, TapError> {
        if fds.len() != pairs {
            return Err(TapError::FdCount {
                fds: fds.len(),
                pairs,
            });
        }
        let mut name: Option<String> = None;
        for fd in &fds {
            let this = tap_name(fd.as_fd())?;
            let name = name.get_or_insert_with(|| this.clone());
            if *name != this {
                return Err(TapError::MixedDevices {
                    fd: fd.as_raw_fd(),
                    name: name.clone(),
                    other: this,
                });
            }
            ioctl_fionbio(fd, true).map_err(|errno| TapError::Setup {
                name: this,
                step: "make a descriptor non-blocking",
                source: errno.into(),
            })?;
        }
        Self::from_attached(name.unwrap_or_default(), fds)
    }

    fn from_attached(name: String, fds: Vec<OwnedFd>) -> Result<Self, TapError> {
        let mut has_uso = false;
        for fd in &fds {
            has_uso = bring_to_known_state(&name, fd.as_fd())?;
        }
        Ok(Self {
            name,
            caps: UplinkCaps {
                queues: fds.len(),
                tx: Offloads {
                    csum: true,
                    tso4: true,
                    tso6: true,
                    ecn: true,
                    uso: has_uso,
                },
                batches: false,
            },
            queues: fds
                .into_iter()
                .enumerate()
                .map(|(index, fd)| TapQueue::new(fd, index > 0))
                .collect(),
        })
    }
}

impl Uplink for Tap {
    fn name(&self) -> String {
        format!("tap {}", self.name)
    }

    fn caps(&self) -> UplinkCaps {
        self.caps
    }

    fn take_queues(&mut self) -> Vec<Box<dyn UplinkQueue>> {
        super::boxed(self.queues.drain(..))
    }
}

fn open_tun() -> Result<OwnedFd, TapError> {
    // The flag is within the range of a C int.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(TUN_PATH);
    match file {
        Ok(file) => Ok(file.into()),
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            Err(TapError::OpenPermission(err))
        }
        Err(err) => Err(TapError::NoTunDriver(err)),
    }
}

/// Opens the first queue and finds out in which queue mode (0 or `IFF_MULTI_QUEUE`) the tap is.
fn attach_first(name: &str, pairs: usize) -> Result<(OwnedFd, u16), TapError> {
    let fd = open_tun()?;
    let mode = if pairs > 1 { IFF_MULTI_QUEUE } else { 0 };
    let err = match tun_set_iff(fd.as_fd(), name, FLAGS | mode) {
        Ok(_) => return Ok((fd, mode)),
        Err(err) if queue::is_invalid(&err) => err,
        Err(err) => return Err(attach_error(name, pairs, err)),
    };
    // The kernel says EINVAL for the wrong queue mode and for the wrong kind of interface alike.
    // Only the first is cured by the other mode; it is checked before everything else.
    let other_mode = mode ^ IFF_MULTI_QUEUE;
    match tun_set_iff(fd.as_fd(), name, FLAGS | other_mode) {
        Err(other) if queue::is_invalid(&other) => Err(attach_error(name, pairs, err)),
        _ if pairs > 1 => Err(TapError::SingleQueue {
            name: name.to_owned(),
            pairs,
        }),
        Ok(_) => Ok((fd, other_mode)),
        Err(other) => Err(attach_error(name, pairs, other)),
    }
}

/// Source: `drivers/net/tun.c`, `tun_set_iff`, `tun_attach`.
fn attach_error(name: &str, pairs: usize, source: io::Error) -> TapError {
    let name = name.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::INVAL) => TapError::WrongKind { name },
        Some(Errno::PERM | Errno::ACCESS) => TapError::Permission { name, source },
        Some(Errno::BUSY) => TapError::Busy { name },
        Some(Errno::TOOBIG) => TapError::NoQueueLeft { name, pairs },
        _ => setup("open a queue", &name)(source),
    }
}

/// Name of the tap that a given descriptor belongs to.
fn tap_name(fd: BorrowedFd<'_>) -> Result<String, TapError> {
    let number = fd.as_raw_fd();
    let iface = tun_get_iff(fd).map_err(|source| match Errno::from_io_error(&source) {
        Some(Errno::BADFD) => TapError::NotAttached { fd: number, source },
        _ => TapError::NotATap { fd: number, source },
    })?;
    if iface.flags & IFF_TAP == 0 {
        return Err(TapError::NotEthernet {
            fd: number,
            name: iface.name,
        });
    }
    Ok(iface.name)
}

/// Sets everything that an earlier owner may have left otherwise, and reads it back. Returns
/// whether the kernel supports USO.
fn bring_to_known_state(name: &str, fd: BorrowedFd<'_>) -> Result<bool, TapError> {
    // A multi-queue tap keeps the flags of its first owner whatever the next one asks for.
    let iface = tun_get_iff(fd).map_err(setup("read the flags", name))?;
    if iface.flags & IFF_VNET_HDR == 0 {
        return Err(TapError::NoVnetHdr {
            name: name.to_owned(),
        });
    }
    if iface.flags & IFF_DETACH_QUEUE != 0 {
        tun_set_queue(fd, true).map_err(setup("attach a queue", name))?;
    }
    if tun_has_packet_info(fd).map_err(setup("read the framing", name))? == Some(true) {
        return Err(TapError::PacketInfo {
            name: name.to_owned(),
        });
    }
    tun_set_vnet_hdr_len(fd, VNET_HDR_LEN).map_err(setup("set the header size", name))?;
    let got = tun_vnet_hdr_len(fd).map_err(setup("read the header size", name))?;
    if got != VNET_HDR_LEN {
        return Err(TapError::HdrLen {
            name: name.to_owned(),
            wanted: VNET_HDR_LEN,
            got,
        });
    }
    tun_set_vnet_le(fd).map_err(setup("set the header's byte order", name))?;
    if !tun_is_vnet_le(fd).map_err(setup("read the header's byte order", name))? {
        return Err(TapError::ByteOrder {
            name: name.to_owned(),
        });
    }
    let has_uso = tun_set_offload(fd, TUN_F_CSUM | TUN_F_USO).is_ok();
    tun_set_offload(fd, 0).map_err(setup("clear the offloads", name))?;
    Ok(has_uso)
}

fn setup(step: &'static str, name: &str) -> impl FnOnce(io::Error) -> TapError {
    let name = name.to_owned();
    move |source| TapError::Setup { name, step, source }
}
