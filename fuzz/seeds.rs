//! Writes the seeds of a body into a folder: `seeds BODY FOLDER [CAPTURE...]`. What can be used of
//! further captures is added to the frames that are kept here.

use std::path::Path;
use std::{env, fs, iter, process};

use fuzz::bodies::{captured, seeds};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [body, folder, captures @ ..] = arguments.as_slice() else {
        eprintln!("usage: seeds BODY FOLDER [CAPTURE...]");
        process::exit(2);
    };
    fs::create_dir_all(folder)?;
    let recorded = captured::recorded();
    let captures: Vec<&Path> = iter::once(recorded.as_path())
        .chain(captures.iter().map(Path::new))
        .collect();
    for (nth, seed) in seeds::of(body, &captures).iter().enumerate() {
        fs::write(Path::new(folder).join(format!("seed-{nth:04}")), seed)?;
    }
    Ok(())
}
