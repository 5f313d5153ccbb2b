// OpenSSL 3 for Swift, which does not import function-like macros: each function here is the macro of its man page, one
// to one, under the name openssl_MACRO.

#ifndef COPENSSL_H
#define COPENSSL_H

#include <openssl/bio.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

static const uint64_t openssl_OP_NO_RENEGOTIATION = SSL_OP_NO_RENEGOTIATION;
static const uint64_t openssl_OP_NO_COMPRESSION = SSL_OP_NO_COMPRESSION;
static const uint64_t openssl_OP_CIPHER_SERVER_PREFERENCE = SSL_OP_CIPHER_SERVER_PREFERENCE;
static const uint64_t openssl_OP_PRIORITIZE_CHACHA = SSL_OP_PRIORITIZE_CHACHA;
static const uint64_t openssl_OP_NO_TICKET = SSL_OP_NO_TICKET;

static const int openssl_R_MALLOC_FAILURE = ERR_R_MALLOC_FAILURE;

static inline int openssl_CTX_set_min_proto_version(SSL_CTX *ctx, int version) {
  return SSL_CTX_set_min_proto_version(ctx, version);
}
static inline int openssl_CTX_set_max_proto_version(SSL_CTX *ctx, int version) {
  return SSL_CTX_set_max_proto_version(ctx, version);
}
static inline void openssl_CTX_set_mode(SSL_CTX *ctx, long mode) { SSL_CTX_set_mode(ctx, mode); }
static inline void openssl_CTX_set_session_cache_mode(SSL_CTX *ctx, long mode) {
  SSL_CTX_set_session_cache_mode(ctx, mode);
}
static inline void openssl_CTX_set_read_ahead(SSL_CTX *ctx, long on) { SSL_CTX_set_read_ahead(ctx, on); }
static inline int openssl_CTX_set1_groups_list(SSL_CTX *ctx, const char *list) {
  return SSL_CTX_set1_groups_list(ctx, (char *)list);
}
static inline int openssl_CTX_add1_chain_cert(SSL_CTX *ctx, X509 *certificate) {
  return SSL_CTX_add1_chain_cert(ctx, certificate);
}
static inline void openssl_CTX_set_tlsext_servername_callback(SSL_CTX *ctx, int (*callback)(SSL *, int *, void *)) {
  SSL_CTX_set_tlsext_servername_callback(ctx, callback);
}
static inline void openssl_CTX_set_tlsext_servername_arg(SSL_CTX *ctx, void *argument) {
  SSL_CTX_set_tlsext_servername_arg(ctx, argument);
}
static inline int openssl_set_tlsext_host_name(SSL *ssl, const char *name) {
  return SSL_set_tlsext_host_name(ssl, (void *)name);
}
// In C, because a Swift string lasts for one call only, and parameters keep pointers to their strings.
static inline int openssl_MAC_init_sha256(EVP_MAC_CTX *mac, const unsigned char *key, size_t size) {
  char digest[] = "SHA256";
  OSSL_PARAM parameters[] = {
    OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0), OSSL_PARAM_construct_end()};
  return EVP_MAC_init(mac, key, size, parameters);
}

static inline void openssl_BIO_set_retry_read(BIO *bio) { BIO_set_retry_read(bio); }
static inline void openssl_BIO_clear_retry_flags(BIO *bio) { BIO_clear_retry_flags(bio); }
static inline long openssl_BIO_get_mem_data(BIO *bio, char **data) { return BIO_get_mem_data(bio, data); }

static inline int openssl_sk_GENERAL_NAME_num(const GENERAL_NAMES *names) { return sk_GENERAL_NAME_num(names); }
static inline GENERAL_NAME *openssl_sk_GENERAL_NAME_value(const GENERAL_NAMES *names, int index) {
  return sk_GENERAL_NAME_value(names, index);
}
static inline void openssl_sk_X509_pop_free(STACK_OF(X509) *stack) { sk_X509_pop_free(stack, X509_free); }
static inline int openssl_sk_X509_num(const STACK_OF(X509) *stack) { return sk_X509_num(stack); }
static inline X509 *openssl_sk_X509_value(const STACK_OF(X509) *stack, int index) { return sk_X509_value(stack, index); }

static inline int openssl_sk_SSL_CIPHER_num(const STACK_OF(SSL_CIPHER) *stack) { return sk_SSL_CIPHER_num(stack); }
static inline const SSL_CIPHER *openssl_sk_SSL_CIPHER_value(const STACK_OF(SSL_CIPHER) *stack, int index) {
  return sk_SSL_CIPHER_value(stack, index);
}

/// The text of a GENERAL_NAME that is a DNS name, an e-mail address or a URI; NULL for other kinds.
static inline const ASN1_IA5STRING *openssl_general_name_text(const GENERAL_NAME *name) {
  switch (name->type) {
  case GEN_DNS:
  case GEN_EMAIL:
  case GEN_URI:
    return name->d.ia5;
  default:
    return NULL;
  }
}

#endif
