//! [`ServerProcess`]: the measured process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that is ended when it is dropped.
pub struct ServerProcess {
    child: Child,
    pub port: u16,
}

/// The memory of a process, as Linux counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    pub rss_bytes: u64,
    /// Peak resident bytes.
    pub peak_rss_bytes: u64,
}

impl ServerProcess {
    pub fn start(program: &Path) -> Result<Self, String> {
        let failed = |error| format!("{}: {error}", program.display());
        let child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut server = Self { child, port: 0 };
        let mut line = String::new();
        if let Some(output) = server.child.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(failed)?;
        }
        let said = line.trim();
        server.port = said.parse().map_err(|_| format!("no port but `{said}`"))?;
        Ok(server)
    }

    /// Returns the process's PID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes the server's input, which ends the server.
    pub fn end(mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        let status = self.child.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the server ended with {status}")),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the memory of a process now.
pub fn memory(id: u32) -> Result<ProcessMemory, String> {
    let path = format!("/proc/{id}/status");
    let status = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    parse(&status).ok_or_else(|| format!("{path} does not say what is resident"))
}

fn parse(status: &str) -> Option<ProcessMemory> {
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kibibytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        kibibytes.checked_mul(1024)
    };
    let rss_bytes = field("VmRSS:")?;
    // The kernel updates peaks with a delay.
    let peak_rss_bytes = field("VmHWM:")?.max(rss_bytes);
    Some(ProcessMemory {
        rss_bytes,
        peak_rss_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_process_is_read() {
        let status = "Name:\tx\nVmHWM:\t  3260 kB\nVmRSS:\t  2000 kB\nThreads:\t1\n";
        let expected = ProcessMemory {
            rss_bytes: 2000 << 10,
            peak_rss_bytes: 3260 << 10,
        };
        assert_eq!(parse(status), Some(expected));
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
