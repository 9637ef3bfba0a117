//! Runs a test on every store.

/// Runs `async fn $name(redrive: Redrive)` as a test on SQLite, Postgres and Redis.
macro_rules! on_every_store {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$name(crate::fixture::open().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let server = redrive_testkit::servers::Postgres::start_with(&[("fsync", "off")]);
                super::$name(redrive::Redrive::open(&server.address()).await.unwrap()).await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let server = redrive_testkit::servers::Redis::start();
                super::$name(redrive::Redrive::open(&server.address()).await.unwrap()).await;
            })+
        }
    };
}
pub(crate) use on_every_store;
