//! The daemon's entry.

use std::process::ExitCode;

fn main() -> ExitCode {
    vhost_user_gro::app::main(std::env::args_os().collect())
}
