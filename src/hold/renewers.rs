//! The renewer threads of one client: lent to a hold, taken back after it, so that a new lock seldom needs a new thread.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::hold::renewer::Renewer;
use crate::observe::metrics::Meters;
use crate::redis_io::node::Node;

/// How many parked threads a client keeps. One that is given back above that ends.
const IDLE: usize = 8;

pub(crate) struct Renewers {
    node: Arc<Node>,
    metrics: Arc<Meters>,
    idle: Mutex<Vec<Renewer>>,
}

impl fmt::Debug for Renewers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewers").finish_non_exhaustive()
    }
}

impl Renewers {
    pub(crate) fn new(node: Arc<Node>, metrics: Arc<Meters>) -> Renewers {
        Renewers {
            node,
            metrics,
            idle: Mutex::default(),
        }
    }

    /// A thread for one hold: the one that was used last, or a new one.
    pub(crate) fn lend(&self) -> Result<Renewer> {
        let idle = self.idle.lock().pop();
        if let Some(renewer) = idle
            && !renewer.is_gone()
        {
            return Ok(renewer);
        }
        Renewer::spawn(self.node.clone(), self.metrics.clone()).map_err(|e| {
            Error::new(
                ErrorKind::Unavailable,
                format!("no renewer thread could be started ({e}), so the lock was given back"),
            )
            .advise("raise the limit on threads or memory, or hold fewer locks")
            .because(e)
        })
    }

    pub(crate) fn give_back(&self, renewer: Renewer) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE {
            idle.push(renewer);
            return;
        }
        drop(idle);
        renewer.end();
    }
}

impl Drop for Renewers {
    fn drop(&mut self) {
        for renewer in self.idle.get_mut().drain(..) {
            renewer.end();
        }
    }
}
