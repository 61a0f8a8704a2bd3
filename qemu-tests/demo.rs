//! placeholder
mod harness;
use harness::*;
use std::process::ExitCode;
fn main() -> anyhow::Result<ExitCode> {
    if !sandbox::is_inside() {
        kit::set_up()?;
        return sandbox::enter();
    }
    sandbox::furnish()?;
    let t = wait::now();
    let kit = Kit::open()?;
    eprintln!("{:?} {:?}", kit.accel, t.elapsed());
    let lab = Lab::new(&kit, Wire::Frames, 1500)?;
    let tap = lab.add_tap(1)?;
    let t = wait::now();
    let vm = Vm::start(&kit, kit.newest(), &VmConfig::new(Netdev::Tap(tap)))?;
    vm.configure()?;
    eprintln!("boot {:?}", t.elapsed());
    eprintln!(
        "{}",
        vm.run("netserver; ping -c 2 10.77.0.1; ping6 -c 1 fd77::1; uname -a")?
    );
    eprintln!("{:?}", vm.cpu_time()?);
    eprintln!("{:?}", counters::GuestCounters::read(&vm)?);
    eprintln!(
        "{:?}",
        netperf::run(
            &kit,
            &lab.sender,
            &vm.ip4,
            netperf::Workload::TcpStream,
            std::time::Duration::from_secs(2)
        )
    );
    eprintln!(
        "{:?}",
        netperf::run(
            &kit,
            &lab.sender,
            &vm.ip6,
            netperf::Workload::TcpRr,
            std::time::Duration::from_secs(2)
        )
    );
    eprintln!("{:?}", counters::GuestCounters::read(&vm)?.rx_interrupts);
    Ok(ExitCode::SUCCESS)
}
