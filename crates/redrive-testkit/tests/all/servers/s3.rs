//! The S3 server: it creates buckets, keeps them through a crash, and leaves nothing behind.

use std::net::TcpStream;

use redrive_testkit::servers::S3;

#[test]
fn buckets_survive_a_restart() {
    let mut s3 = S3::start();
    s3.create_bucket("first");
    s3.kill();
    assert!(TcpStream::connect(s3.address()).is_err(), "the S3 server still listens");
    s3.restart();
    s3.create_bucket("second");
    let address = s3.address();
    drop(s3);
    assert!(TcpStream::connect(address).is_err(), "the S3 server still listens");
}
