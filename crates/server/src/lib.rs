//! An HTTP server over the engine, for clients of OpenAI's interface.
//!
//! [`Server::start`] listens at once, so that readiness can be asked for while the model loads; [`Server::publish`] serves the
//! model; [`Server::run`] waits for a signal and ends in order. The engine runs on a thread of its own and never waits for a client:
//! events of a request go into its bounded queue, and from there to the connection as fast as it is read.
//!
//! Where to look: `router.rs` has the paths; `chat.rs` and `completions.rs` the two ways to ask for text, with what they share in
//! `sampling.rs` (fields), `generation.rs` and `post.rs` (outputs on their way) and `stream.rs` (server-sent events); `connection.rs` the limits of
//! connections; `openapi.json` is the published description, which a test compares with the handlers.
//!
//! What it does not do: it opens no file, computes nothing of a model, and speaks no TLS; put a proxy in front for that.
#![forbid(unsafe_code)]

mod answer;
mod app;
mod body;
mod chat;
mod completions;
mod connection;
mod error;
mod fields;
mod generation;
mod messages;
mod metrics;
mod model;
mod openapi;
mod post;
mod router;
mod sampling;
mod settings;
mod signals;
mod status;
mod stream;
mod timings;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_checkpoint::ChatTemplate;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use app::App;
use connection::Stage;
pub use model::{Model, ModelError};
pub use settings::Settings;

/// Threads that serve connections. One is enough: it only moves bytes, and with a second one each token would wake both. A runtime on
/// the one thread was tried: 23.7 us of processor time a streamed token where this has 24.3, which is less than runs differ by, and each
/// token of each client would cost the engine a write to wake a thread that is awake.
const WORKERS: usize = 1;
/// Threads that read prompts.
const READERS: usize = 4;
/// Stack of a thread, beside what templates need.
const OWN_STACK: usize = 2 << 20;
/// After a cut, so long for the tasks to notice.
const CUT_TIME: Duration = Duration::from_secs(5);

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    app: Arc<App>,
    address: SocketAddr,
    stage: watch::Sender<Stage>,
    connections: JoinHandle<()>,
}

/// Why a server can not be, or can not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address can not be listened at.
    #[error("{host}:{port}: cannot listen there: {error}{}", other_port(error))]
    Listen {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// What the system says.
        error: io::Error,
    },
    /// The system gives no threads or no signals.
    #[error("the server cannot run: {0}")]
    System(#[from] io::Error),
    /// The engine stopped by itself.
    #[error("the engine has stopped{}", .0.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Engine(Option<paceline::Broken>),
}

/// What helps where another program listens.
fn other_port(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program listens there: take another port, or 0 for any that is free"
        }
        _ => "",
    }
}

impl Server {
    /// Listens at `host` and `port` (0: any free one) and answers that the model is being loaded.
    ///
    /// # Errors
    /// The address is taken or is not this machine's; no threads.
    pub fn start(host: &str, port: u16, settings: Settings) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(READERS)
            .thread_stack_size(OWN_STACK + ChatTemplate::STACK)
            .on_thread_start(ChatTemplate::render_on_this_thread)
            .thread_name("paceline-http")
            .enable_all()
            .build()?;
        let listen = |error| ServeError::Listen { host: host.to_owned(), port, error };
        let listener = runtime.block_on(TcpListener::bind((host, port))).map_err(listen)?;
        let address = listener.local_addr()?;
        let app = Arc::new(App::new(settings.clone()));
        let (stage, stages) = watch::channel(Stage::Open);
        let router = router::router(Arc::clone(&app));
        let connections = runtime.spawn(connection::serve(listener, router, settings, stages));
        Ok(Self { runtime, app, address, stage, connections })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a model from now on.
    ///
    /// # Panics
    /// At the second model.
    pub fn publish(&self, model: Model) {
        let post = Arc::clone(&model.post);
        self.runtime.spawn(async move { post.carry().await });
        self.app.publish(model);
    }

    /// What the engine is doing; `None` before there is a model.
    pub fn status(&self) -> Option<paceline::EngineStatus> {
        self.app.loaded().map(|served| served.model.engine.status())
    }

    /// Calls `ready` once signals are heard, waits for SIGTERM, SIGINT or the end of the engine, and then ends as
    /// [`Server::stop`] does; a second signal cuts at once.
    ///
    /// # Errors
    /// No signals, or the engine has stopped by itself.
    pub fn run(self, drain: Duration, ready: impl FnOnce(SocketAddr)) -> Result<(), ServeError> {
        let mut signals = self.runtime.block_on(async { signals::Signals::new() })?;
        ready(self.address);
        let app = Arc::clone(&self.app);
        let broken = self.runtime.block_on(async {
            tokio::select! {
                () = signals.next() => false,
                () = app.broken.notified() => true,
            }
        });
        let why = self.status().and_then(|status| status.broken);
        self.end(drain, async move { signals.next().await });
        if broken { Err(ServeError::Engine(why)) } else { Ok(()) }
    }

    /// Takes no more requests, gives those that are there up to `drain` to finish, and cuts off the rest.
    pub fn stop(self, drain: Duration) {
        self.end(drain, std::future::pending());
    }

    fn end(self, drain: Duration, hurry: impl Future<Output = ()>) {
        let Self { runtime, app, stage, mut connections, .. } = self;
        app.end();
        stage.send_replace(Stage::Drain);
        tracing::info!("ending: what was begun is finished");
        runtime.block_on(async {
            tokio::select! {
                _ = &mut connections => return,
                () = tokio::time::sleep(drain) => {}
                () = hurry => {}
            }
            stage.send_replace(Stage::Cut);
            // A task that does not end by then ends with the runtime.
            let _ = timeout(CUT_TIME, connections).await;
        });
        runtime.shutdown_timeout(CUT_TIME);
    }
}
