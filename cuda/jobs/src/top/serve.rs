//! `larder top --serve`: answers `GET /metrics` with the jobs as OpenMetrics text, and nothing else.
//!
//! So many threads answer, each one client after the other. A client has so long for all of it: a slow one takes one
//! thread for that time, and holds up nobody else. The small libraries for HTTP have no such limit.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::metrics::open_metrics;
use super::screen::look;
use crate::Failure;
use crate::visible::visible;

/// Clients that are answered at once. Further ones wait in the system's queue.
const CLIENTS: usize = 8;

/// How long a client may take: as long as Prometheus does.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest request that is read.
const REQUEST_BYTES: u64 = 8 << 10;

/// Reads where to listen: a port alone, with or without a colon, is one of this machine's own address.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
        Ok(port) => Ok((Ipv4Addr::LOCALHOST, port).into()),
        Err(_) => text.parse().map_err(|_| {
            "give a port, such as 9835, or an address and a port, such as 0.0.0.0:9835".to_owned()
        }),
    }
}

/// Answers until somebody ends the program. Says where it listens.
pub(super) fn run(places: &[PathBuf], address: SocketAddr) -> Result<(), Failure> {
    // The folders may come back later; at the beginning their absence is a mistake.
    look(places)?;
    let failed = |act: &str, error: &dyn Display| Failure::Failed(format!("cannot {act}: {error}"));
    let bound = TcpListener::bind(address).and_then(|bound| Ok((bound.local_addr()?, bound)));
    let (address, listener) =
        bound.map_err(|error| failed(&format!("listen on {address}"), &error))?;
    let listener = Arc::new(listener);
    let (end, ended) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = end.send(());
    })
    .map_err(|error| failed("take signals", &error))?;
    for _ in 0..CLIENTS {
        let (listener, places) = (listener.clone(), places.to_owned());
        let thread = thread::Builder::new().spawn(move || serve(&listener, &places));
        thread.map_err(|error| failed("start a thread", &error))?;
    }
    let mut out = io::stdout().lock();
    writeln!(out, "http://{address}/metrics")?;
    out.flush()?;
    // The threads end with the program.
    let _ = ended.recv();
    Ok(())
}

fn serve(listener: &TcpListener, places: &[PathBuf]) {
    loop {
        match listener.accept() {
            // What goes wrong with a client is its own business.
            Ok((stream, _)) => drop(answer(stream, places)),
            // Too many open files, perhaps.
            Err(_) => thread::sleep(PATIENCE / 10),
        }
    }
}

fn answer(stream: TcpStream, places: &[PathBuf]) -> io::Result<()> {
    let mut client = Client {
        stream,
        until: Instant::now() + PATIENCE,
    };
    let mut lines = BufReader::new(Read::by_ref(&mut client).take(REQUEST_BYTES)).lines();
    let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    // All of it is read: what is unread when a connection ends may cost the client the answer.
    while !lines
        .next()
        .unwrap_or_else(|| Ok(String::new()))?
        .is_empty()
    {}
    drop(lines);
    let mut words = request.split([' ', '?']);
    let (status, kind, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => match look(places) {
            Ok(jobs) => (
                "200 OK",
                "application/openmetrics-text; version=1.0.0",
                open_metrics(&jobs),
            ),
            Err(error) => (
                "500 Internal Server Error",
                "text/plain",
                format!("{}\n", visible(&error.to_string())),
            ),
        },
        _ => (
            "404 Not Found",
            "text/plain",
            "GET /metrics is answered\n".to_owned(),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all((head + &body).as_bytes())
}

/// A connection that refuses once its time is over.
struct Client {
    stream: TcpStream,
    until: Instant,
}

impl Client {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
