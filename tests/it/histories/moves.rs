//! What a thread of the crowd does with each kind of lock: sections of all sorts, entered in all ways.

use std::sync::atomic::Ordering;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use leasehold::{Canceller, ErrorKind, RwLockUpgradableReadGuard, RwLockWriteGuard, Wait};

use super::session::{LIMIT, NAME, Session};
use crate::support::history::Mode;

const NAMES: [&str; 3] = [NAME, "b", "c"];

/// One of the five forms of an acquire.
enum Form {
    Plain,
    Try,
    For(Duration),
    Until(Instant),
    With(Wait),
}

macro_rules! acquire {
    ($form:expr, $handle:expr, $plain:ident, $try:ident, $try_for:ident, $try_until:ident, $with:ident $(, $n:expr)?) => {
        match $form {
            Form::Plain => $handle.$plain($($n)?),
            Form::Try => $handle.$try($($n)?),
            Form::For(d) => $handle.$try_for($($n,)? d),
            Form::Until(i) => $handle.$try_until($($n,)? i),
            Form::With(w) => $handle.$with($($n,)? w),
        }
    };
}

macro_rules! lock {
    ($form:expr, $handle:expr) => {
        acquire!(
            $form,
            $handle,
            lock,
            try_lock,
            try_lock_for,
            try_lock_until,
            lock_with
        )
    };
}

impl Session<'_> {
    pub(super) fn run(&mut self, kind: &str) {
        while !self.orders.end.load(Ordering::SeqCst) {
            match kind {
                "mutex" => self.mutex(NAME),
                "reentrant" => self.reentrant(NAME),
                "fair" => self.fair(NAME),
                "rw" => self.read_or_write(),
                "permits" => self.permits(),
                "mixed" => self.mixed(),
                kind => panic!("no such kind: {kind}"),
            }
            self.pause(4);
        }
    }

    fn mutex(&mut self, name: &str) {
        let (form, mutex) = (self.form(), self.client.mutex(name));
        if let Some(held) = self.take(name, Mode::Exclusive, || lock!(form, mutex)) {
            self.work(&held);
            self.give_back(held);
        }
    }

    fn fair(&mut self, name: &str) {
        let (form, mutex) = (self.form(), self.client.fair_mutex(name));
        if let Some(held) = self.take(name, Mode::Exclusive, || lock!(form, mutex)) {
            self.work(&held);
            self.give_back(held);
        }
    }

    fn reentrant(&mut self, name: &str) {
        let (form, mutex) = (self.form(), self.client.reentrant_mutex(name));
        let Some(outer) = self.take(name, Mode::Exclusive, || lock!(form, mutex)) else {
            return;
        };
        self.work(&outer);
        let again = self.client.reentrant_mutex(name);
        let inner = match self.random.one_in(2) {
            true => self.take(name, Mode::Exclusive, || again.lock()),
            false => None,
        };
        let Some(inner) = inner else {
            return self.give_back(outer);
        };
        self.work(&inner);
        let (first, last) = match self.random.one_in(2) {
            true => (inner, outer),
            false => (outer, inner),
        };
        self.give_back(first);
        self.work(&last);
        self.give_back(last);
    }

    fn read_or_write(&mut self) {
        match self.random.below(if self.is_to_hold() { 1 } else { 4 }) {
            0 => self.write(),
            1 => self.read_to_upgrade(),
            _ => self.read(),
        }
    }

    fn read(&mut self) {
        let (form, lock) = (self.form(), self.client.rw_lock(NAME));
        let read = || {
            acquire!(
                form,
                lock,
                read,
                try_read,
                try_read_for,
                try_read_until,
                read_with
            )
        };
        let Some(held) = self.take(NAME, Mode::Shared, read) else {
            return;
        };
        self.work(&held);
        if self.random.one_in(4)
            && let Some(inner) = self.take(NAME, Mode::Shared, || lock.read())
        {
            self.work(&inner);
            self.give_back(inner);
        }
        self.give_back(held);
    }

    fn write(&mut self) {
        let (form, lock) = (self.form(), self.client.rw_lock(NAME));
        let write = || {
            acquire!(
                form,
                lock,
                write,
                try_write,
                try_write_for,
                try_write_until,
                write_with
            )
        };
        let Some(held) = self.take(NAME, Mode::Exclusive, write) else {
            return;
        };
        self.work(&held);
        if self.random.one_in(2) {
            return self.give_back(held);
        }
        let downgrade = |guard: RwLockWriteGuard| guard.downgrade().map_err(|r| r.into_parts());
        match self.swap(held, Mode::Shared, downgrade) {
            Ok(held) => {
                self.work(&held);
                self.give_back(held);
            }
            Err(held) => self.give_back(held),
        }
    }

    fn read_to_upgrade(&mut self) {
        let (form, lock) = (self.form(), self.client.rw_lock(NAME));
        let read = || match form {
            Form::Try => lock.try_upgradable_read(),
            Form::For(d) => lock.try_upgradable_read_for(d),
            _ => lock.upgradable_read(),
        };
        let Some(held) = self.take(NAME, Mode::Shared, read) else {
            return;
        };
        self.work(&held);
        let form = self.form();
        let upgrade = |guard: RwLockUpgradableReadGuard| {
            let result = match form {
                Form::Try => guard.try_upgrade(),
                Form::For(d) => guard.try_upgrade_for(d),
                _ => guard.upgrade(),
            };
            result.map_err(|r| r.into_parts())
        };
        match self.swap(held, Mode::Exclusive, upgrade) {
            Ok(held) => {
                self.work(&held);
                self.give_back(held);
            }
            Err(held) => {
                self.work(&held);
                self.give_back(held);
            }
        }
    }

    fn permits(&mut self) {
        let limit = self.limit.load(Ordering::Relaxed);
        let n = match self.is_to_hold() {
            true => 2,
            false => 1 + u32::try_from(self.random.below(u64::from(limit))).unwrap_or(0),
        };
        let (form, semaphore) = (self.form(), self.client.semaphore(NAME, limit));
        let acquire = || {
            let acquired = acquire!(
                form,
                semaphore,
                acquire_many,
                try_acquire_many,
                try_acquire_many_for,
                try_acquire_many_until,
                acquire_many_with,
                n
            );
            if acquired
                .as_ref()
                .is_err_and(|e| e.kind() == ErrorKind::InvalidOptions)
            {
                // The parent has changed it.
                self.limit.store(2 * LIMIT - 1 - limit, Ordering::Relaxed);
            }
            acquired
        };
        if let Some(held) = self.take(NAME, Mode::Permits(n), acquire) {
            self.work(&held);
            self.give_back(held);
        }
    }

    fn mixed(&mut self) {
        let name = *self.random.pick(&NAMES).expect("a name");
        match self.random.below(if self.is_to_hold() { 1 } else { 4 }) {
            0 => {
                let other = *self.random.pick(&NAMES).expect("a name");
                let lock = if name == other {
                    name.to_owned()
                } else {
                    format!("{name}+{other}")
                };
                let (form, several) = (self.form(), self.client.multi_mutex([name, other]));
                if let Some(held) = self.take(&lock, Mode::Exclusive, || lock!(form, several)) {
                    self.work(&held);
                    self.give_back(held);
                }
            }
            1 => self.mutex(name),
            2 => self.fair(name),
            _ => self.reentrant(name),
        }
    }

    fn form(&mut self) -> Form {
        let soon = Duration::from_millis(1 + self.random.below(60));
        match self.random.below(6) {
            _ if self.is_to_hold() => Form::Plain,
            0 | 1 => Form::Plain,
            2 => Form::Try,
            3 => Form::For(soon),
            4 => Form::Until(Instant::now() + soon),
            _ => {
                let canceller = Canceller::new();
                let wait = Wait::forever().cancelled_by(&canceller);
                thread::spawn(move || {
                    sleep(soon);
                    canceller.cancel();
                });
                Form::With(wait)
            }
        }
    }
}
