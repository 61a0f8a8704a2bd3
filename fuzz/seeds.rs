//! Writes the seeds of a body into a folder: `seeds BODY FOLDER`.

use std::path::Path;
use std::{env, fs, process};

use fuzz::bodies::seeds;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [body, folder] = arguments.as_slice() else {
        eprintln!("usage: seeds BODY FOLDER");
        process::exit(2);
    };
    fs::create_dir_all(folder)?;
    for (nth, seed) in seeds::of(body).iter().enumerate() {
        fs::write(Path::new(folder).join(format!("seed-{nth:04}")), seed)?;
    }
    Ok(())
}
