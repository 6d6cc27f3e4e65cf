//! The server: prints its port, answers on the loopback interface, and ends when its input ends.
//!
//! The load generator starts it and holds its input, so that no server outlives it.

mod allocator;
mod cache;
mod connection;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use cache::Cache;
use connection::Connection;

const SWEEP: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    let cache = Arc::new(Cache::default());
    tokio::spawn(sweep(Arc::clone(&cache)));
    let mut input = tokio::io::stdin();
    let mut nothing = [0; 16];
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                tokio::spawn(serve(stream, Connection::new(Arc::clone(&cache))));
            }
            read = input.read(&mut nothing) => if read? == 0 { break },
        }
    }
    Ok(())
}

async fn sweep(cache: Arc<Cache>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        cache.sweep();
    }
}

async fn serve(stream: TcpStream, connection: Connection) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| connection.answer(request));
    // A client that disconnects is not a server error; the load generator notices missing answers.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
