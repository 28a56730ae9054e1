// A certified OpenID provider (npm oidc-provider) for the tests of identity: issuer of callers' tokens, login of people, and
// authorization server of upstreams.
//     node oidc_provider.mjs '{"port": 9200, "accounts": {"ann": {"groups": ["sre"]}}, "clients": [...], "accessTokenTtl": 300}'
// Any password is good for a login. Access tokens are signed (RFC 9068) where a resource was asked for. POST /test/revoke ends all
// grants, POST /test/rotate begins to sign with the next key, POST /test/age makes every login an hour older.

import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';

const require = createRequire(new URL('../../.peers/oidc/package.json', import.meta.url));
const { Provider } = await import(require.resolve('oidc-provider'));
const given = JSON.parse(process.argv[2] ?? '{}');
const issuer = `http://127.0.0.1:${given.port}`;
const accounts = given.accounts ?? {};
const counts = {};

const key = (kid) => ({ ...generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' }), kid, alg: 'RS256', use: 'sig' });
const keys = [key('first'), key('second')];

class Memory {
  static kept = new Map();

  constructor(name) { this.name = name; }

  at(id) { return `${this.name}:${id}`; }

  async upsert(id, payload) { Memory.kept.set(this.at(id), payload); }

  async find(id) { return Memory.kept.get(this.at(id)); }

  async findByUid(uid) { return [...Memory.kept].find(([at, each]) => at.startsWith(this.name) && each.uid === uid)?.[1]; }

  async findByUserCode() { return undefined; }

  async consume(id) { Memory.kept.get(this.at(id)).consumed = Math.floor(Date.now() / 1000); }

  async destroy(id) { Memory.kept.delete(this.at(id)); }

  async revokeByGrantId(grantId) {
    for (const [at, each] of Memory.kept) if (each.grantId === grantId) Memory.kept.delete(at);
  }
}

const configuration = (jwks) => ({
  adapter: Memory,
  clients: given.clients ?? [],
  jwks: { keys: jwks },
  cookies: { keys: ['a key for the cookies of tests'] },
  scopes: ['openid', 'offline_access', ...(given.scopes ?? ['read', 'write', 'deploy'])],
  claims: { openid: ['sub', 'groups', 'name', 'auth_time'] },
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  features: {
    devInteractions: { enabled: true },
    clientCredentials: { enabled: true },
    introspection: { enabled: true, allowedPolicy: async () => true },
    revocation: { enabled: true },
    registration: { enabled: given.registration ?? true },
    rpInitiatedLogout: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: async (ctx, client, oneOf) => oneOf ?? given.resource ?? undefined,
      useGrantedResource: async () => true,
      getResourceServerInfo: async (ctx, resource) => ({
        scope: (given.scopes ?? ['read', 'write', 'deploy']).join(' '),
        audience: resource,
        accessTokenFormat: given.format ?? 'jwt',
        accessTokenTTL: given.accessTokenTtl ?? 300,
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
  issueRefreshToken: async () => given.refresh ?? true,
  rotateRefreshToken: () => given.rotate ?? true,
  extraTokenClaims: async (ctx, token) => accounts[token.accountId ?? token.clientId] ?? {},
  findAccount: async (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id, ...(accounts[id] ?? {}) }) }),
  ttl: { AccessToken: given.accessTokenTtl ?? 300, ClientCredentials: given.accessTokenTtl ?? 300, Interaction: 600, Session: 3600, Grant: 3600, IdToken: 300 },
});

const make = (jwks) => {
  const provider = new Provider(issuer, configuration(jwks));
  provider.on('server_error', (ctx, error) => console.error(error));
  return provider.callback();
};
let handle = make(keys);

const server = createServer((request, response) => {
  const path = request.url.split('?')[0];
  counts[path] = (counts[path] ?? 0) + 1;
  if (path === '/test/rotate') {
    keys.unshift(key(`key-${keys.length}`));
    handle = make(keys);
    response.end('{}');
  } else if (path === '/test/revoke') {
    for (const at of Memory.kept.keys()) if (/^(Grant|RefreshToken|AccessToken|Session)/.test(at)) Memory.kept.delete(at);
    response.end('{}');
  } else if (path === '/test/age') {
    for (const [at, each] of Memory.kept) if (at.startsWith('Session:') && each.loginTs) each.loginTs -= 3600;
    response.end('{}');
  } else if (path === '/test/counts') {
    response.end(JSON.stringify(counts));
  } else {
    handle(request, response);
  }
});
server.listen(given.port, '127.0.0.1');
