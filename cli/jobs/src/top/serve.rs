//! `larder top --serve`: answers `GET /metrics` with the jobs as OpenMetrics text, and no other
//! request.
//!
//! Each connection has a thread, and the number of threads is bounded. A client that finishes in
//! milliseconds, as every good one does, does not wait for slow clients, however many there are: if
//! all places are taken, the oldest connection is closed. One polling thread would suffice, but the
//! standard library cannot poll. A flood of clients can take at most:
//!
//! * [`CONNECTIONS`] threads and open files, and the few files that one reading of the jobs opens,
//!   since readings take turns. That is half of the 1024 files that a process may usually open.
//! * One reading at a time: all clients that asked before a reading began get its answer, so none
//!   waits for more than two readings. At most [`WAITING`] clients wait for a reading, since
//!   closing their connections does not wake them; others are asked to retry later.
//! * [`WRITTEN`] answers, and one that is being made; the oldest connection whose client does not
//!   read its answer is closed too.
//! * [`PATIENCE`] for each connection, except for the wait for a reading. Small HTTP libraries have
//!   no such limit.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::connections::Connections;
use super::metrics::open_metrics;
use super::screen::look;
use crate::Failure;
use crate::visible::visible;

/// Maximum number of open connections.
const CONNECTIONS: usize = 512;

/// Maximum number of clients that wait for a reading of the jobs.
const WAITING: usize = 128;

/// Maximum number of answers kept until their clients have read them.
const WRITTEN: usize = 16;

/// Time that a client may take, the same as Prometheus's timeout.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum bytes of a request.
const REQUEST_BYTES: u64 = 8 << 10;

/// Bytes of a thread's stack. Its deepest use is to read a JSON file, at most 128 values deep, in a
/// build without optimisation. Only the part that is used takes memory, a few kilobytes.
const STACK_BYTES: usize = 1 << 20;

/// Parses the address to listen on: a port alone, with or without a colon, is on this machine's own
/// address.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| {
            "give a port, such as 9835, or an address and a port, such as 0.0.0.0:9835".to_owned()
        }),
    }
}

/// Prints the address, and answers requests until the user ends the program.
pub(super) fn run(places: &[PathBuf], address: SocketAddr) -> Result<(), Failure> {
    // The folders may disappear and return later, but their absence at the start is a mistake.
    look(places)?;
    let failed = |act: &str, error: &dyn Display| Failure::Failed(format!("cannot {act}: {error}"));
    let bound = TcpListener::bind(address).and_then(|bound| Ok((bound.local_addr()?, bound)));
    let (address, listener) =
        bound.map_err(|error| failed(&format!("listen on {address}"), &error))?;
    let (end, ended) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = end.send(());
    })
    .map_err(|error| failed("take signals", &error))?;
    let server = Arc::new(ServeState::new(places.to_owned()));
    let accepting = thread::Builder::new().spawn(move || server.serve(&listener));
    accepting.map_err(|error| failed("start a thread", &error))?;
    let mut out = io::stdout().lock();
    writeln!(out, "http://{address}/metrics")?;
    out.flush()?;
    // The threads end with the program.
    let _ = ended.recv();
    Ok(())
}

/// The state shared by the threads.
struct ServeState {
    places: Vec<PathBuf>,
    patience: Duration,
    connections: Arc<Connections>,
    /// Connections whose answers are being written.
    written: Arc<Connections>,
    /// The last answer. The lock is held while an answer is made.
    latest: Mutex<Latest>,
    /// Number of threads that hold the lock of `latest` or wait for it.
    waiting: Mutex<usize>,
}

/// The last answer made.
#[derive(Default)]
struct Latest {
    /// The time at which the reading of the jobs for this answer began.
    began: Option<Instant>,
    answer: Arc<str>,
    /// Number of answers made.
    #[cfg(test)]
    made: u64,
}

impl ServeState {
    fn new(places: Vec<PathBuf>) -> Self {
        Self {
            places,
            patience: PATIENCE,
            connections: Connections::new(CONNECTIONS),
            written: Connections::new(WRITTEN),
            latest: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// Accepts connections forever.
    fn serve(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.begin(&Arc::new(stream)),
                // The cause may be too many open files; closing the oldest connection frees one.
                Err(_) if self.connections.close_oldest() => {}
                Err(_) => thread::sleep(PATIENCE / 10),
            }
        }
    }

    /// Answers in a thread of its own. If the system has no thread left, closes the oldest
    /// connection to free one.
    fn begin(self: &Arc<Self>, stream: &Arc<TcpStream>) {
        let begun = || {
            let held = self.connections.hold(Arc::clone(stream));
            let server = Arc::clone(self);
            let thread = thread::Builder::new().stack_size(STACK_BYTES);
            // Errors of a client concern only that client.
            thread.spawn(move || drop(server.answer(&held.stream)))
        };
        while begun().is_err() && self.connections.close_oldest() {}
    }

    fn answer(&self, stream: &Arc<TcpStream>) -> io::Result<()> {
        let mut client = TimedConnection {
            stream,
            until: Instant::now() + self.patience,
        };
        let request = read_request(&mut client)?;
        let mut words = request.split([' ', '?']);
        match (words.next(), words.next()) {
            (Some("GET"), Some("/metrics")) if self.may_wait() => {
                let written = self.write(&mut client, || self.metrics());
                *locked(&self.waiting) -= 1;
                written
            }
            (Some("GET"), Some("/metrics")) => {
                let words = "too many ask at once: ask again\n";
                let busy = response("503 Service Unavailable", "text/plain", words);
                client.write_all(busy.as_bytes())
            }
            _ => {
                let words = "GET /metrics is answered\n";
                client.write_all(response("404 Not Found", "text/plain", words).as_bytes())
            }
        }
    }

    /// Counts one more waiting client, unless there are too many. Returns whether it did.
    fn may_wait(&self) -> bool {
        let mut waiting = locked(&self.waiting);
        let may = *waiting < WAITING;
        *waiting += usize::from(may);
        may
    }

    /// Writes an answer. Makes a new one, unless one was begun since the request.
    fn write(
        &self,
        client: &mut TimedConnection<'_>,
        make: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let asked = Instant::now();
        let mut latest = locked(&self.latest);
        if latest.began.is_none_or(|began| began < asked) {
            let began = Instant::now();
            latest.answer = make().into();
            latest.began = Some(began);
            #[cfg(test)]
            {
                latest.made += 1;
            }
        }
        let answer = Arc::clone(&latest.answer);
        let _held = self.written.hold(Arc::clone(client.stream));
        drop(latest);
        client.write_all(answer.as_bytes())
    }

    /// Reads the jobs. Returns the whole answer.
    fn metrics(&self) -> String {
        match look(&self.places) {
            Ok(jobs) => {
                let kind = "application/openmetrics-text; version=1.0.0";
                response("200 OK", kind, &open_metrics(&jobs))
            }
            Err(error) => {
                let words = format!("{}\n", visible(&error.to_string()));
                response("500 Internal Server Error", "text/plain", &words)
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn response(status: &str, kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the first line of a request. Reads the whole request: unread bytes at the end of a
/// connection may cost the client the answer. Refuses a request that breaks off, or is too long.
fn read_request(client: &mut TimedConnection<'_>) -> io::Result<String> {
    let mut lines = BufReader::new(client.take(REQUEST_BYTES)).lines();
    let mut line = || match lines.next() {
        Some(line) => line,
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    };
    let request = line()?;
    while !line()?.is_empty() {}
    Ok(request)
}

/// A connection that fails once its time is over.
struct TimedConnection<'c> {
    stream: &'c Arc<TcpStream>,
    until: Instant,
}

impl TimedConnection<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for TimedConnection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&**self.stream).read(buffer)
    }
}

impl Write for TimedConnection<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&**self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&**self.stream).flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    /// Longer than any wait, however busy the machine is.
    const NEVER: Duration = Duration::from_secs(900);

    /// The bytes that slow clients send: none, a part of a line, and whole lines without the end of
    /// the request.
    const PARTS: [&str; 3] = ["", "GET /met", "GET /metrics HTTP/1.1\r\nA: b\r\n"];

    fn server(folder: &TempDir) -> ServeState {
        ServeState {
            patience: NEVER,
            ..ServeState::new(vec![folder.path().to_owned()])
        }
    }

    /// Serves until this process ends.
    fn start(server: &Arc<ServeState>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::clone(server);
        thread::spawn(move || server.serve(&listener));
        address
    }

    fn come(address: SocketAddr, part: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream.write_all(part.as_bytes()).unwrap();
        stream
    }

    fn slow(address: SocketAddr, count: usize) -> Vec<TcpStream> {
        let parts = PARTS.into_iter().cycle().take(count);
        parts.map(|part| come(address, part)).collect()
    }

    fn answer_of(mut stream: TcpStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(address: SocketAddr) -> String {
        answer_of(come(address, "GET /metrics HTTP/1.1\r\n\r\n"))
    }

    fn wait(mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < NEVER, "waited in vain");
            thread::yield_now();
        }
    }

    fn is_answer(text: &str) -> bool {
        text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("# EOF\n")
    }

    fn is_open(mut stream: &TcpStream) -> bool {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]).map_err(|error| error.kind());
        stream.set_nonblocking(false).unwrap();
        read == Err(io::ErrorKind::WouldBlock)
    }

    #[test]
    fn a_client_is_answered_while_two_hundred_slow_ones_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let address = start(&Arc::new(server(&folder)));
        let mut held = slow(address, 200);
        assert!(is_answer(&get(address)));
        assert!(held.iter().all(is_open));
        // A slow client is answered too, once it has asked.
        let mut last = held.swap_remove(1);
        last.write_all(b"rics HTTP/1.1\r\n\r\n").unwrap();
        assert!(is_answer(&answer_of(last)));
        assert!(held.iter().all(is_open));
    }

    #[test]
    fn of_more_clients_than_are_held_as_many_are_closed_as_are_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let few = ServeState {
            connections: Connections::new(4),
            ..server(&folder)
        };
        let address = start(&Arc::new(few));
        let held = slow(address, 10);
        assert!(is_answer(&get(address)));
        let open = || held.iter().filter(|stream| is_open(stream)).count();
        // The connections are closed already. The test waits until the system reports it here.
        wait(|| open() <= 3);
        assert!(is_answer(&get(address)));
        assert_eq!(open(), 3);
    }

    #[test]
    fn whoever_takes_too_long_is_let_go() {
        let folder = tempfile::tempdir().unwrap();
        let hasty = Arc::new(ServeState {
            patience: Duration::from_millis(20),
            ..server(&folder)
        });
        for mut stream in slow(start(&hasty), 6) {
            // The connection was closed, or was reset because of data that the server had not read.
            let end = stream.read_to_end(&mut Vec::new());
            let end = end.map_err(|error| error.kind());
            let reset = Err(io::ErrorKind::ConnectionReset);
            assert!(end == Ok(0) || end == reset, "{end:?}");
        }
        wait(|| hasty.connections.count() == 0);
    }

    #[test]
    fn of_clients_that_do_not_read_their_answers_the_oldest_loses_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let few = Arc::new(ServeState {
            written: Connections::new(2),
            ..server(&folder)
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        // More than the system buffers for a connection.
        let mut write = || {
            clients.push(TcpStream::connect(address).unwrap());
            let (stream, server) = (Arc::new(listener.accept().unwrap().0), Arc::clone(&few));
            thread::spawn(move || {
                let until = Instant::now() + NEVER;
                let stream = &stream;
                server.write(&mut TimedConnection { stream, until }, || {
                    "x".repeat(64 << 20)
                })
            })
        };
        let first = write();
        wait(|| few.written.count() == 1);
        let second = write();
        wait(|| few.written.count() == 2);
        assert!(!first.is_finished() && !second.is_finished());
        let third = write();
        assert!(first.join().unwrap().is_err());
        assert!(!second.is_finished() && !third.is_finished());
        let mut reader = clients.pop().unwrap();
        let read = io::copy(&mut reader, &mut io::sink());
        assert_eq!(read.unwrap(), 64 << 20);
        third.join().unwrap().unwrap();
        drop(clients);
        assert!(second.join().unwrap().is_err());
    }

    #[test]
    fn whoever_asked_before_a_look_began_has_its_answer() {
        let folder = tempfile::tempdir().unwrap();
        let server = Arc::new(server(&folder));
        let address = start(&server);
        // Prevents a reading from beginning.
        let latest = server.latest.lock().unwrap();
        let asked: Vec<_> = (0..60)
            .map(|_| come(address, "GET /metrics HTTP/1.1\r\n\r\n"))
            .collect();
        wait(|| server.connections.count() == 60);
        // Gives all clients time to send their requests. If the time is too short, there are more
        // readings.
        thread::sleep(Duration::from_millis(200));
        drop(latest);
        assert!(
            asked
                .into_iter()
                .all(|stream| is_answer(&answer_of(stream)))
        );
        let made = server.latest.lock().unwrap().made;
        assert!(made < 60, "{made} looks");
    }

    #[test]
    fn of_more_who_ask_at_once_than_may_wait_the_others_are_told_to_come_later() {
        let folder = tempfile::tempdir().unwrap();
        let server = Arc::new(server(&folder));
        let address = start(&server);
        let latest = server.latest.lock().unwrap();
        let ask = || come(address, "GET /metrics HTTP/1.1\r\n\r\n");
        let waiting: Vec<_> = (0..WAITING).map(|_| ask()).collect();
        wait(|| *server.waiting.lock().unwrap() == WAITING);
        assert!(answer_of(ask()).starts_with("HTTP/1.1 503 "));
        drop(latest);
        assert!(
            waiting
                .into_iter()
                .all(|stream| is_answer(&answer_of(stream)))
        );
        wait(|| *server.waiting.lock().unwrap() == 0);
        assert!(is_answer(&get(address)));
    }

    #[test]
    fn a_thread_has_stack_enough_for_files_of_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        for depth in [120, 100_000] {
            let text = "[".repeat(depth) + &"]".repeat(depth);
            for kind in ["status", "control"] {
                let path = folder.path().join(format!("{depth}.{kind}.json"));
                fs::write(
                    path,
                    format!("{{\"x\": {text}, \"larder\": {{\"y\": {text}}}}}"),
                )
                .unwrap();
            }
        }
        assert!(is_answer(&get(start(&Arc::new(server(&folder))))));
    }
}
