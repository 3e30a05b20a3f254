// Memory for tiles.

namespace superopt {

// Memory for the tiles of one program: taken piece by piece, given back all at once, kept by the thread.
class Scratch {
public:
    Scratch() : mark_(pool().used) {}
    ~Scratch() { pool().used = mark_; }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    float* floats(index_t count) {
        Pool& own = pool();
        if (own.used == own.length) {
            own.length = 2 * own.length + 8;
            own.pieces = static_cast<Piece*>(realloc(own.pieces, sizeof(Piece) * own.length));
            for (size_t i = own.used; i < own.length; ++i) own.pieces[i] = {nullptr, -1};
        }
        Piece& piece = own.pieces[own.used++];
        if (piece.count < count) {
            free(piece.data);
#if defined(__SANITIZE_ADDRESS__)
            piece.count = count;  // exact, so that the sanitizer sees one element too many
            void* data = nullptr;
            const bool failed = posix_memalign(&data, 64, sizeof(float) * size_t(count)) != 0;
            piece.data = failed ? nullptr : static_cast<float*>(data);
#else
            piece.count = (count + 15) / 16 * 16;
            piece.data = static_cast<float*>(aligned_alloc(64, sizeof(float) * size_t(piece.count)));
#endif
        }
        return piece.data;
    }

private:
    struct Piece {
        float* data;
        index_t count;
    };
    struct Pool {
        Piece* pieces = nullptr;
        size_t length = 0;
        size_t used = 0;
        ~Pool() {
            for (size_t i = 0; i < length; ++i) free(pieces[i].data);
            free(pieces);
        }
    };
    static Pool& pool() {
        static thread_local Pool own;
        return own;
    }
    size_t mark_;
};

inline void fill(float* to, index_t count, float value) {
    for (index_t i = 0; i < count; ++i) to[i] = value;
}

// What was added up under an old shift; what is still at its start stays there.
inline void rescale(float* to, index_t count, float factor, float start) {
    for (index_t i = 0; i < count; ++i) to[i] = to[i] == start ? start : to[i] * factor;
}

}  // namespace superopt
