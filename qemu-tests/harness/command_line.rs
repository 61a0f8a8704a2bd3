//! QEMU's command line for a guest.

use std::process::Command;

use super::kit::{Accel, Qemu};
use super::vm::{Netdev, VmConfig};

/// The guest's kernel measures its clock once and believes it, and doesn't guard itself.
const KERNEL_OPTIONS: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check random.trust_cpu=on";

/// Everything but the devices and what is booted.
pub(super) fn machine(command: &mut Command, config: &VmConfig, qemu: &Qemu, accel: Accel) {
    let (accel, model) = match accel {
        Accel::Kvm => ("kvm", "host"),
        Accel::Tcg => ("tcg,thread=multi,tb-size=256", emulated_processor(qemu)),
    };
    let memory = config.memory_mib;
    command
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-M", "q35", "-accel", accel, "-cpu", model])
        .args(["-smp", &config.vcpus.to_string(), "-m", &memory.to_string()])
        .arg("-object")
        .arg(format!(
            "memory-backend-memfd,id=memory,size={memory}M,share=on"
        ))
        .args(["-numa", "node,memdev=memory", "-append", KERNEL_OPTIONS]);
}

/// What the emulator does quickly and the guest's checksum code has a use for.
///
/// Before version 8 it spoils the flags in CMPXCHG16B, of which the guest's kernel soon dies.
fn emulated_processor(qemu: &Qemu) -> &'static str {
    if qemu.major() < 8 {
        "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,-cx16"
    } else {
        "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16"
    }
}

/// The network device and what is behind it.
pub(super) fn network(
    command: &mut Command,
    config: &VmConfig,
    qemu: &Qemu,
    accel: Accel,
    mac: &str,
) {
    let queues = config.queues;
    let netdev = match &config.netdev {
        Netdev::None => return,
        Netdev::Tap(name) => {
            let queues = if queues > 1 {
                format!(",queues={queues}")
            } else {
                String::new()
            };
            format!("tap,id=net,ifname={name},script=no,downscript=no,vhost=off{queues}")
        }
        Netdev::Stream(socket) => {
            let path = socket.display();
            format!("stream,id=net,server=on,addr.type=unix,addr.path={path}")
        }
        Netdev::VhostUser(socket) => {
            command
                .arg("-chardev")
                .arg(format!("socket,id=backend,path={}", socket.display()));
            format!("vhost-user,id=net,chardev=backend,queues={queues}")
        }
        Netdev::VhostUserServer(socket) => {
            let server = format!("socket,id=backend,path={},server=on", socket.display());
            command.arg("-chardev").arg(server);
            format!("vhost-user,id=net,chardev=backend,queues={queues}")
        }
    };
    let mut device = format!(
        "virtio-net-pci,id=nic,netdev=net,mac={mac},romfile=,rx_queue_size={}",
        config.rx_queue_size
    );
    if queues > 1 {
        device.push_str(",mq=on");
    }
    if qemu.major() < 8 && accel == Accel::Tcg {
        // There, vhost-user with message interrupts and without KVM ends in a null pointer
        // (kvm_virtio_pci_irqfd_use), so the guest gets an interrupt line.
        device.push_str(",vectors=0");
    } else if queues > 1 {
        device.push_str(&format!(",vectors={}", 2 * queues + 2));
    }
    if !config.properties.is_empty() {
        device.push(',');
        device.push_str(&config.properties);
    }
    command.args(["-netdev", &netdev, "-device", &device]);
}
