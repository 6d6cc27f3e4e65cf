//! [`Connections`]: a bounded number of connections. A new one closes the oldest if all are in use.
//!
//! CONN1. At most `most` connections are held, each by one [`OpenConnection`], which is dropped by
//! the thread that serves it. A closed connection counts until then, so there are never more than
//! `most` threads.
//! CONN2. Another thread closes a connection by shutting it down: the thread that waits on it wakes
//! with an error or the end of the stream, and drops its `OpenConnection`.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

pub(super) struct Connections {
    most: usize,
    /// Connections in the order of arrival.
    held: Mutex<VecDeque<Arc<TcpStream>>>,
    left: Condvar,
}

/// A connection, held until this value is dropped.
pub(super) struct OpenConnection {
    connections: Arc<Connections>,
    pub(super) stream: Arc<TcpStream>,
}

impl Connections {
    /// Creates an empty set for at most `most` connections, at least 1.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            held: Mutex::default(),
            left: Condvar::new(),
        })
    }

    /// Holds one more connection. If all places are taken, closes the oldest connection, and waits
    /// for a free place.
    pub(super) fn hold(self: &Arc<Self>, stream: Arc<TcpStream>) -> OpenConnection {
        let mut held = self.lock();
        while held.len() >= self.most {
            held = self.close_one(held);
        }
        held.push_back(Arc::clone(&stream));
        OpenConnection {
            connections: Arc::clone(self),
            stream,
        }
    }

    /// Closes the oldest connection and waits until any has been dropped. Returns false if none is
    /// held.
    pub(super) fn close_oldest(&self) -> bool {
        let held = self.lock();
        let is_any = !held.is_empty();
        drop(self.close_one(held));
        is_any
    }

    fn close_one<'h>(&self, held: Queue<'h>) -> Queue<'h> {
        let before = held.len();
        if let Some(oldest) = held.front() {
            // The client may already have disconnected.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let stays = |held: &mut VecDeque<_>| held.len() == before && before > 0;
        let waited = self.left.wait_while(held, stays);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Queue<'_> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }
}

type Queue<'h> = MutexGuard<'h, VecDeque<Arc<TcpStream>>>;

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut held = self.connections.lock();
        held.retain(|other| !Arc::ptr_eq(other, &self.stream));
        self.connections.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_newcomer_closes_the_oldest_and_waits_until_its_thread_lets_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Connections::new(2);
        assert!(!connections.close_oldest());
        let mut clients = Vec::new();
        let mut come = || {
            clients.push(TcpStream::connect(address).unwrap());
            let held = connections.hold(Arc::new(listener.accept().unwrap().0));
            thread::spawn(move || (&*held.stream).read(&mut [0]).unwrap_or(0))
        };
        let first = come();
        let second = come();
        assert_eq!(connections.count(), 2);
        let third = come();
        assert_eq!(first.join().unwrap(), 0);
        assert_eq!(connections.count(), 2);
        assert!(!second.is_finished() && !third.is_finished());
        assert!(connections.close_oldest());
        assert_eq!(second.join().unwrap(), 0);
        assert_eq!(connections.count(), 1);
        assert!(!third.is_finished());
        drop(clients);
        third.join().unwrap();
        assert_eq!(connections.count(), 0);
    }
}
