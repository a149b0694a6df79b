//! Many blobs at once, a few at a time. Each goes as if it were alone; the first error ends the batch once what is under way
//! has ended. Spec: none; the bound is courtesy to registries, and to our own memory.

use std::sync::Mutex;
use std::sync::PoisonError;

use super::Client;
use super::push::{Mount, Upload};
use crate::descriptor::Descriptor;
use crate::error::Result;
use crate::layout::Layout;
use crate::progress::Progress;
use crate::reference::Repository;

/// How many blobs come at a time: as many as docker lets (dockerd(8), `--max-concurrent-downloads`).
pub const PARALLEL_PULLS: usize = 3;
/// How many blobs go, are mounted or asked for at a time (dockerd(8), `--max-concurrent-uploads`).
pub const PARALLEL_PUSHES: usize = 5;

impl Client {
    /// Brings blobs into `layout`, at most [`PARALLEL_PULLS`] at a time.
    ///
    /// # Errors
    /// As [`Self::blob`], for the first blob that failed; what has come by then stays.
    pub fn blobs(
        &self,
        from: &Repository,
        blobs: &[Descriptor],
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<()> {
        in_parallel(PARALLEL_PULLS, blobs, |blob| self.blob(from, blob, layout, progress)).map(drop)
    }

    /// Sends blobs of `layout` to a repository, at most [`PARALLEL_PUSHES`] at a time.
    ///
    /// # Errors
    /// As [`Self::push_blob`], for the first blob that failed; what has arrived by then stays.
    pub fn push_blobs(
        &self,
        to: &Repository,
        blobs: &[Descriptor],
        layout: &Layout,
        progress: &dyn Progress,
    ) -> Result<()> {
        in_parallel(PARALLEL_PUSHES, blobs, |blob| self.push_blob(to, blob, layout, progress)).map(drop)
    }

    /// Makes blobs of `from` appear in `to` without sending them, at most [`PARALLEL_PUSHES`] at a time. Returns those that
    /// have to be sent, in the order of `blobs`.
    ///
    /// # Errors
    /// As [`Self::mount`], for the first blob that failed; what is mounted by then stays.
    pub fn mount_all(&self, from: &Repository, to: &Repository, blobs: &[Descriptor]) -> Result<Vec<Upload>> {
        let mounts = in_parallel(PARALLEL_PUSHES, blobs, |blob| self.mount(from, to, blob))?;
        let uploads = mounts.into_iter().filter_map(|mount| match mount {
            Mount::Mounted => None,
            Mount::Upload(upload) => Some(upload),
        });
        Ok(uploads.collect())
    }

    /// Sends blobs that could not be mounted, at most [`PARALLEL_PUSHES`] at a time.
    ///
    /// # Errors
    /// As [`Self::upload`], for the first blob that failed; what has arrived by then stays.
    pub fn upload_all(&self, uploads: Vec<Upload>, layout: &Layout, progress: &dyn Progress) -> Result<()> {
        // A session is good for one upload, so each is taken out of its place.
        let uploads: Vec<_> = uploads.into_iter().map(|upload| Mutex::new(Some(upload))).collect();
        in_parallel(PARALLEL_PUSHES, &uploads, |upload| {
            match upload.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(upload) => self.upload(upload, layout, progress),
                None => Ok(()),
            }
        })
        .map(drop)
    }

    /// Which of these blobs a repository lacks: one HEAD for each, at most [`PARALLEL_PUSHES`] at a time. Blobs that this client
    /// sent or mounted there are not asked for.
    ///
    /// # Errors
    /// The network errors.
    pub fn lacking(&self, at: &Repository, blobs: &[Descriptor]) -> Result<Vec<Descriptor>> {
        let there = in_parallel(PARALLEL_PUSHES, blobs, |blob| self.has_blob(at, blob))?;
        Ok(blobs.iter().zip(there).filter(|(_, there)| !there).map(|(blob, _)| blob.clone()).collect())
    }
}

/// `work` on each item, on at most `threads` threads; the results in the order of the items.
fn in_parallel<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let queue = Mutex::new(items.iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let results = Mutex::new(Vec::new());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..items.len().min(threads) {
            scope.spawn(|| {
                while failure.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                    let Some((at, item)) = next() else { return };
                    match work(item) {
                        Ok(result) => results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result)),
                        Err(error) => {
                            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Error;

    const THREADS: usize = 4;

    #[test]
    fn results_keep_their_order_and_work_is_bounded() {
        // Without all threads at work at once the barrier would never open.
        let (barrier, now, most) = (Barrier::new(THREADS), AtomicUsize::new(0), AtomicUsize::new(0));
        let items: Vec<usize> = (0..3 * THREADS).collect();
        let doubled = in_parallel(THREADS, &items, |item| {
            most.fetch_max(1 + now.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            barrier.wait();
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(2 * item)
        });
        assert_eq!(doubled.unwrap(), items.iter().map(|item| 2 * item).collect::<Vec<_>>());
        assert_eq!(most.into_inner(), THREADS);
    }

    #[test]
    fn one_failure_ends_the_batch() {
        let tried = AtomicUsize::new(0);
        let result = in_parallel(THREADS, &[0; 100], |_| {
            tried.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(Error::Interrupted)
        });
        assert!(matches!(result, Err(Error::Interrupted)));
        assert!(tried.into_inner() <= THREADS);
    }
}
