// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs with hints, while guard schedules: this process serves their page itself, so that it
//! says what guard does. The scheduler reads the registered processes from the server's map
//! (`bpf/guard_hints.bpf.h`). Readers of the page find its beat stopped when this process ends,
//! however it ends.

use reprieve_watch::publish::{Counts, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Ends the service, and waits for that, when dropped.
pub struct Hints {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counts: Mutex<Counts>,
    failed: Mutex<Option<String>>,
}

impl Hints {
    pub fn serve(mut server: Server) -> std::io::Result<Hints> {
        let shared = Arc::new(Shared::default());
        let kept = shared.clone();
        let work = move || {
            let ran = server.run(&kept.stop, |server| {
                *kept.counts.lock().unwrap_or_else(PoisonError::into_inner) = server.counts();
                true
            });
            if let Err(error) = ran {
                let text = format!("hints are no longer served: {error}");
                *kept.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
            }
        };
        let thread = std::thread::Builder::new().name("guard-hints".into()).spawn(work)?;
        Ok(Hints { shared, thread: Some(thread) })
    }

    pub fn counts(&self) -> Counts {
        *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why they are no longer served, if so.
    pub fn failed(&self) -> Option<String> {
        self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
