//! Hashes the sources that this build is made of, so that a remembered result is only as old as the code that made it. A hash taken
//! when the program runs would be of sources that it may not contain.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    // What derives an image, and what judges it.
    export("DERIVING_CODE", &["../oci/src", "src"])?;
    export("JUDGING_CODE", &["../tests/src"])
}

fn export(name: &str, folders: &[&str]) -> io::Result<()> {
    let mut hasher = DefaultHasher::new();
    for folder in folders {
        println!("cargo::rerun-if-changed={folder}");
        add(Path::new(folder), &mut hasher)?;
    }
    println!("cargo::rustc-env={name}={:016x}", hasher.finish());
    Ok(())
}

fn add(folder: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    let mut paths =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add(&path, hasher)?;
        } else {
            path.hash(hasher);
            fs::read(&path)?.hash(hasher);
        }
    }
    Ok(())
}
