//! What stands around a guard: the real program behind it on PATH, and the processes above it.
//!
//! Looks only; `main.rs` acts on it.

use core::ffi::CStr;

use dind_init::numbers::Decimal;
use dind_init::text::{MARK, PATH_BYTES_MAX, PROC_BYTES_MAX, compose, of_process};
use dind_init::{Pid, guard, search};

use crate::command;
use crate::sys;
use crate::sys::arguments::Arguments;
use crate::sys::files::{self, File};

/// The first program called `name` on PATH that is not this one.
#[inline(never)]
pub(crate) fn next_on_path<'a>(
    name: &[u8],
    arguments: Arguments,
    buffer: &'a mut [u8; PATH_BYTES_MAX],
) -> Option<&'a CStr> {
    let own = File::at(c"/proc/self/exe");
    let is_other = |path: &CStr| {
        File::at(path).is_some_and(|file| {
            let is_own = own.as_ref().is_some_and(|own| own.is(&file)) || is_copy(path, &file);
            file.is_regular() && files::may_execute(path) && !is_own
        })
    };
    let folder = search::folders(command::path_variable(arguments))
        .find(|folder| compose(buffer, &search::joined(folder, name)).is_some_and(is_other))?;
    compose(buffer, &search::joined(folder, name))
}

/// Whether `file` is another copy of this program, of whatever version: two guards that each take the other for the
/// daemon would execute each other for ever.
#[inline(never)]
fn is_copy(path: &CStr, file: &File) -> bool {
    if file.size() > guard::COPY_BYTES_MAX {
        return false;
    }
    let mut bytes = [0; guard::COPY_BYTES_MAX];
    files::read_start(path, &mut bytes).is_some_and(|bytes| bytes.windows(MARK.len()).any(|part| part == MARK))
}

/// Whether PID 1 of our namespace or an ancestor of ours is this very program. All of them adopt orphans, so those of the
/// daemon would reach it. What cannot be seen counts as not ours: one init too many does no harm, one too few does.
#[inline(never)]
pub(crate) fn is_reaped_above() -> bool {
    let Some(own) = File::at(c"/proc/self/exe") else { return false };
    // A /proc of another PID namespace would show us strangers under the numbers of our ancestors.
    let mut link = [0; 16];
    if files::read_link(c"/proc/self", &mut link) != Some(Decimal::of(sys::own_pid().unsigned_abs()).bytes()) {
        return false;
    }
    let is_ours = |process: Pid| {
        of_process(&mut [0; PROC_BYTES_MAX], process, b"exe").and_then(File::at).is_some_and(|file| file.is(&own))
    };
    let ancestors = core::iter::successors(Some(sys::parent_pid()), |process| parent_of(*process));
    is_ours(1) || ancestors.take(guard::ANCESTORS_MAX).take_while(|process| *process > 1).any(is_ours)
}

fn parent_of(process: Pid) -> Option<Pid> {
    let mut buffer = [0; PROC_BYTES_MAX];
    let path = of_process(&mut buffer, process, b"stat")?;
    guard::parent(files::read_start(path, &mut [0; guard::STAT_BYTES_MAX])?)
}
