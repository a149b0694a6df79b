//! Paths of an image, followed in its unpacked root as the kernel follows them in a container: links are resolved there and never lead
//! out. Reads the root only, and changes nothing.

use std::collections::VecDeque;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// As many symlinks as the kernel follows in one path (path_resolution(7)).
const SYMLINKS_MAX: usize = 40;

/// Where `path` really lies in the image below `root`; none: it is not there. `seen` is told of every step on the way, links too: its
/// path in the image and what lstat(2) says of it. Error: links loop, a step cannot be looked at, or that of `seen`.
pub fn follow(
    root: &Path,
    path: &Path,
    seen: &mut dyn FnMut(&Path, &Metadata) -> Result<()>,
) -> Result<Option<PathBuf>> {
    let mut rest: VecDeque<PathBuf> = parts(path);
    let mut here = PathBuf::from("/");
    let mut followed = 0;
    while let Some(part) = rest.pop_front() {
        if part.as_os_str() == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        let metadata = match fs::symlink_metadata(host(root, &next)) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("look at {}", next.display())),
        };
        seen(&next, &metadata)?;
        if metadata.is_symlink() {
            followed += 1;
            ensure!(followed <= SYMLINKS_MAX, "follow {}: more than {SYMLINKS_MAX} links", path.display());
            let target = fs::read_link(host(root, &next)).with_context(|| format!("read link {}", next.display()))?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
        } else {
            here = next;
        }
    }
    Ok(Some(here))
}

/// Where this machine has a path of the image. Its own links are not followed: call it with what [`follow`] gave.
pub fn host(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The components of a path, `..` among them, without `/` and `.`.
fn parts(path: &Path) -> VecDeque<PathBuf> {
    let named = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    named.map(|part| PathBuf::from(part.as_os_str())).collect()
}
